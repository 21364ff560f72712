// Random changes to a file's bytes, from a seed, for tests of file readers.
#ifndef BFIO_TESTS_TESTING_MUTATE_H_
#define BFIO_TESTS_TESTING_MUTATE_H_

#include <cstdint>
#include <string>

#include "common/base/rng.h"

namespace bfio::testing {

// One to four small changes: a flipped bit, a random byte, a digit, a truncation, a copied part, a deleted
// part.
inline std::string Mutate(std::string file, Rng& rng) {
  for (uint64_t changes = 1 + rng.Below(4); changes > 0 && !file.empty(); --changes) {
    const size_t at = rng.Below(rng.Below(8) == 0 ? 8 : file.size()) % file.size();
    switch (rng.Below(6)) {
      case 0:
        file[at] = static_cast<char>(file[at] ^ (1 << rng.Below(8)));
        break;
      case 1:
        file[at] = static_cast<char>(rng.Below(256));
        break;
      case 2:
        file[at] = "0123456789{}[],:\"-.eE\\"[rng.Below(22)];
        break;
      case 3:
        file.resize(at);
        break;
      case 4:
        file.insert(at, file.substr(rng.Below(file.size()), rng.Below(16)));
        break;
      case 5:
        file.erase(at, rng.Below(16));
        break;
    }
  }
  return file;
}

}  // namespace bfio::testing

#endif  // BFIO_TESTS_TESTING_MUTATE_H_
