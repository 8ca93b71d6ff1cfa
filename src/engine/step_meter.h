/* Measures one step of the engine: step.c and engine.c say where they are, and at its end the step's record goes to the
 * ring and to the counters. Engine thread only; no allocation, a few reads of the clock per step and one per event. */
#ifndef DSE_ENGINE_STEP_METER_H
#define DSE_ENGINE_STEP_METER_H

#include "engine/step_ring.h"

struct dse_scheduler;

struct dse_step_meter {
    struct dse_step_record now; /* the step under way */
    uint64_t forward_begin_ns, forward_ns, logits_ns, logits_decode_rows, logits_rows;
    uint64_t preemptions, tokens, faults; /* counts when the step began */
};

/* Waiting for work is over; it began at since_ns. May come several times before there is a step. */
void dse_step_meter_waited(struct dse_step_meter *meter, uint64_t since_ns);
/* Blocks were copied for the disk, since since_ns; counts for the next step. */
void dse_step_meter_swapped(struct dse_step_meter *meter, uint64_t since_ns);
/* The batch is formed: counts its rows, before they become part of their sequences. */
void dse_step_meter_formed(struct dse_step_meter *meter, const struct dse_scheduler *scheduler, int chunk_tokens);
/* The forward pass through the layers is over. */
void dse_step_meter_computed(struct dse_step_meter *meter);
/* The head was computed for n_rows, of which n_first come after a prompt. */
void dse_step_meter_logits(struct dse_step_meter *meter, uint64_t since_ns, int n_rows, int n_first);
void dse_step_meter_delivered(struct dse_step_meter *meter, uint64_t since_ns);
/* The step is over. */
void dse_step_meter_end(struct dse_step_meter *meter, const struct dse_scheduler *scheduler,
                        struct dse_step_ring *ring);

#endif
