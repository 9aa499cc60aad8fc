/* KVC__HD: marks a function that host compilers and nvcc share, and nothing elsewhere. */
#ifndef KVC__BASE_HOST_DEVICE_H
#define KVC__BASE_HOST_DEVICE_H

#if defined(__CUDACC__)
#define KVC__HD __host__ __device__
#else
#define KVC__HD
#endif

#endif
