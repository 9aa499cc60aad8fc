/*
 * Vector types of one set of instructions, for rope_<set>.c and rope_template.h. The file that
 * includes it first defines
 *
 *   ROPE_BYTES    bytes of a vector
 *   ROPE_TARGET   attribute of every function: its set of instructions
 *
 * These are the compiler's own vectors: +, -, *, /, &, |, ^, << and >> work on their lanes, and a
 * cast keeps the bits. So the arithmetic is written once (rope_template.h), and a set adds the few
 * steps that have no operator.
 */
#ifndef KVC__CPU_ROPE_VECTORS_H
#define KVC__CPU_ROPE_VECTORS_H

#include <stdint.h>

typedef uint8_t octets __attribute__((vector_size(ROPE_BYTES)));
typedef uint16_t halves __attribute__((vector_size(ROPE_BYTES)));
typedef uint32_t words __attribute__((vector_size(ROPE_BYTES)));
typedef int32_t integers __attribute__((vector_size(ROPE_BYTES)));
typedef float floats __attribute__((vector_size(ROPE_BYTES)));

/* Two of them hold as many lanes as 'floats'. (A vector type of twice the size would say that, but gcc 12
 * takes it apart by way of memory and integer registers.) */
typedef double doubles __attribute__((vector_size(ROPE_BYTES)));
typedef uint64_t longs __attribute__((vector_size(ROPE_BYTES)));
typedef float few_floats __attribute__((vector_size(ROPE_BYTES / 2)));

#define ROPE_LANES (ROPE_BYTES / 4)   /* of float32 */
#define ROPE_DOUBLES (ROPE_BYTES / 8) /* lanes of double */

#define ROPE_INLINE static inline __attribute__((always_inline)) ROPE_TARGET

#endif /* KVC__CPU_ROPE_VECTORS_H */
