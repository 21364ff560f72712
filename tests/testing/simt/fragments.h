// The warp-wide matrix instructions, element by element, with the fragment layouts of the PTX manual ("Matrix
// fragments for mma.m16n8k16", "ldmatrix").
//
// With g = lane / 4 and t = lane % 4, and two bf16 to a register, lower column first:
//   A 16x16: a[0] row g,   columns 2t, 2t+1;     a[1] row g+8, the same columns;
//            a[2] row g,   columns 2t+8, 2t+9;   a[3] row g+8, the same columns
//   B 16x8:  b[0] rows 2t, 2t+1 of column g;     b[1] rows 2t+8, 2t+9
//   C 16x8:  d[0], d[1] row g, columns 2t, 2t+1; d[2], d[3] row g+8
//   ldmatrix: register i holds elements 2t, 2t+1 of row g of matrix i; transposed: of column g.
#ifndef BFIO_TESTS_TESTING_SIMT_FRAGMENTS_H_
#define BFIO_TESTS_TESTING_SIMT_FRAGMENTS_H_

#include <cstdint>

namespace simt {

// Arguments of one lane of ldmatrix.x4: the address of row lane % 8 of matrix lane / 8, and its registers.
struct LoadMatrices {
  const void* row;
  uint32_t* registers;

  static void Run(void* const* lanes);
  static void RunTransposed(void* const* lanes);
};

// Arguments of one lane of mma.sync.m16n8k16: its fragments; the product is added to d. Sums are computed in
// fp32 in ascending order of k.
struct MultiplyAdd {
  float* d;
  const uint32_t* a;
  uint32_t b[2];

  static void Run(void* const* lanes);
};

}  // namespace simt

#endif  // BFIO_TESTS_TESTING_SIMT_FRAGMENTS_H_
