/* The compiled kernels, one image a .cu file, as the build embeds them (cmake/cuda.cmake). */
#ifndef KVC__CUDA_IMAGES_H
#define KVC__CUDA_IMAGES_H

extern const void *const kvc__images[];
extern const int kvc__image_count;

#endif
