/* Inverse frequencies of rotary embeddings with the scalings of the family. The device turns them into its table of
 * cosines and sines; nothing else knows the formulas.
 *
 * Linear: position interpolation. llama3: Llama 3.1's wavelength bands. yarn: Peng et al., "YaRN: Efficient Context
 * Window Extension of Large Language Models", 2023, in the form that Hugging Face computes.
 */
#include <math.h>

#include "model/config.h"

#define TWO_PI 6.283185307179586476925286766559

static double llama3_frequency(const struct dse_rope_config *rope, double frequency)
{
    double wavelength = TWO_PI / frequency, original = (double)rope->original_context;
    if (wavelength < original / rope->high_freq_factor) return frequency;
    if (wavelength > original / rope->low_freq_factor) return frequency / rope->factor;
    double smooth = (original / wavelength - rope->low_freq_factor) / (rope->high_freq_factor - rope->low_freq_factor);
    return (1 - smooth) * frequency / rope->factor + smooth * frequency;
}

/* The pair whose wavelength turns n times within the original context. */
static double yarn_correction(const struct dse_rope_config *rope, double n)
{
    return rope->dimensions * log((double)rope->original_context / (n * TWO_PI)) / (2 * log(rope->theta));
}

static double yarn_magnitude(double factor, double mscale)
{
    return factor <= 1 ? 1 : 0.1 * mscale * log(factor) + 1;
}

static double yarn_cos_sin_factor(const struct dse_rope_config *rope)
{
    if (rope->attention_factor != 0) return rope->attention_factor;
    if (rope->mscale != 0 && rope->mscale_all_dim != 0)
        return yarn_magnitude(rope->factor, rope->mscale) / yarn_magnitude(rope->factor, rope->mscale_all_dim);
    return yarn_magnitude(rope->factor, 1);
}

float dse_attention_scale(const struct dse_config *config)
{
    double scale = 1 / sqrt((double)config->head_dim);
    if (config->latent.kv_rank > 0 && config->rope.scaling != DSE_ROPE_NONE) {
        /* Squared: the definition scales q and k. It asks for any scaling, not for yarn. */
        double magnitude = yarn_magnitude(config->rope.factor, config->rope.mscale_all_dim);
        scale *= magnitude * magnitude;
    }
    return (float)scale;
}

void dse_rope_frequencies(const struct dse_rope_config *rope, const float *divisors, float *out, float *cos_sin_factor)
{
    double low = 0, high = 0;
    *cos_sin_factor = 1;
    if (rope->scaling == DSE_ROPE_YARN) {
        low = fmax(floor(yarn_correction(rope, rope->beta_fast)), 0);
        /* Clamped with r - 1, not with the number of pairs: as published, and visible for short original contexts. */
        high = fmin(ceil(yarn_correction(rope, rope->beta_slow)), rope->dimensions - 1);
        if (low == high) high += 0.001;
        *cos_sin_factor = (float)yarn_cos_sin_factor(rope);
    }
    for (int i = 0; i < rope->dimensions / 2; i++) {
        double frequency = pow(rope->theta, -2.0 * i / rope->dimensions);
        switch (rope->scaling) {
        case DSE_ROPE_NONE: break;
        case DSE_ROPE_LINEAR: frequency /= rope->factor; break;
        case DSE_ROPE_LLAMA3: frequency = llama3_frequency(rope, frequency); break;
        case DSE_ROPE_YARN: {
            double ramp = fmin(fmax((i - low) / (high - low), 0), 1);
            frequency = frequency * (1 - ramp) + frequency / rope->factor * ramp;
            break;
        }
        }
        if (divisors != NULL) frequency /= (double)divisors[i];
        out[i] = (float)frequency;
    }
}
