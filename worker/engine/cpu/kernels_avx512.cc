// For AVX-512F, BW, DQ and VL: 24 sums, 4 weights and an input fit in 32 registers.
#define BFIO_KERNELS kAvx512Kernels
#define BFIO_KERNELS_NAME "avx512"
#define BFIO_REGISTER_BYTES 64
#define BFIO_TILE_ROWS 6
#define BFIO_TILE_COLUMNS 4
#include "worker/engine/cpu/kernels_body.h"
