/* Picks the variants of the vector operations for this CPU. */
#include "kernels/vector.h"

#include "kernels/dispatch.h"

void dse_vector_ops_pick(struct dse_vector_ops *ops)
{
    ops->rmsnorm = (dse_rmsnorm_fn *)dse_kernel_pick("rmsnorm", "f32")->function;
    ops->silu_mul = (dse_silu_mul_fn *)dse_kernel_pick("silu_mul", "f32")->function;
    ops->softmax = (dse_softmax_fn *)dse_kernel_pick("softmax", "f32")->function;
    ops->softmax_merge = (dse_softmax_merge_fn *)dse_kernel_pick("softmax_merge", "f32")->function;
    ops->narrow = (dse_narrow_fn *)dse_kernel_pick("narrow", "f16")->function;
    ops->widen = (dse_widen_fn *)dse_kernel_pick("widen", "f16")->function;
    ops->expand = (dse_expand_fn *)dse_kernel_pick("expand", "q8")->function;
    ops->shrink = (dse_shrink_fn *)dse_kernel_pick("shrink", "q8")->function;
}
