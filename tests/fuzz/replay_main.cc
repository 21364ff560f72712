// Runs a fuzz target over files, and over all files of folders: FUZZ_x PATH...
//
// For builds without libFuzzer. Exit code 0 when all inputs have been run, 2 when a path is missing or there
// were no inputs.
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string>

#include "tests/fuzz/fuzz.h"

int main(int argc, char** argv) {
  std::set<std::string> files;
  for (int i = 1; i < argc; ++i) {
    if (!std::filesystem::is_directory(argv[i])) files.insert(argv[i]);
    if (!std::filesystem::is_directory(argv[i])) continue;
    for (const auto& entry : std::filesystem::directory_iterator(argv[i])) files.insert(entry.path());
  }
  for (const std::string& path : files) {
    std::ifstream in(path, std::ios::binary);
    if (!in) {
      std::fprintf(stderr, "cannot read %s\n", path.c_str());
      return 2;
    }
    // Printed before the run, so that the last line names the input that crashes or hangs.
    std::printf("%s\n", path.c_str());
    std::fflush(stdout);
    // A copy of exactly the input's size, so that a sanitizer detects reads beyond its end.
    const std::string text(std::istreambuf_iterator<char>(in), {});
    const std::string bytes(text.data(), text.size());
    LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
  }
  std::printf("%zu inputs\n", files.size());
  return files.empty() ? 2 : 0;
}
