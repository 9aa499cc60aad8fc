/*
 * May an output be written while the other tensors of the call are read? And do the rows of one
 * output lie apart from each other? For tensors that kvc__check_bounds() has passed.
 */
#ifndef KVC__OPS_OVERLAP_H
#define KVC__OPS_OVERLAP_H

#include "base/tensor.h"

/*
 * Can two tensors be shown to share no byte? Any of three proofs will do:
 *
 *   - their extents are apart;
 *   - their strides of dimension 0 are equal, and modulo that stride the spans of their rows are
 *     apart (K and V halves of each row of one buffer);
 *   - their strides of dimensions 0 and 1 are both equal, the former a multiple of the latter, and
 *     modulo the latter the spans of their heads are apart (K and V adjacent in each head).
 *
 * A 'no' may be wrong for stranger layouts; a 'yes' never is.
 */
int kvc__tensors_disjoint(const kvc_tensor *a, const kvc_tensor *b);

/* The same elements at the same addresses: the one legal way to share, q_out over q. */
int kvc__tensors_same(const kvc_tensor *a, const kvc_tensor *b);

/*
 * Does every element of a tensor of 1 to 3 dimensions, the last one contiguous, have an address of
 * its own? Asks for positive strides, of which the larger one steps over all of the smaller one.
 */
int kvc__rows_lie_apart(const kvc_tensor *tensor);

#endif
