// A folder of its own for a test's files, removed at the end.
#pragma once

#include <stdlib.h>

#include <filesystem>
#include <stdexcept>
#include <string>
#include <system_error>

namespace bfio::testing {

class TempFolder {
 public:
  TempFolder() {
    if (mkdtemp(path_.data()) == nullptr) throw std::runtime_error("mkdtemp failed");
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  ~TempFolder() {
    // BFIO_KEEP_TEST_FILES=1 keeps the files, to examine them after a failure.
    std::error_code ignored;
    if (getenv("BFIO_KEEP_TEST_FILES") == nullptr) std::filesystem::remove_all(path_, ignored);
  }

  const std::string& path() const { return path_; }

 private:
  std::string path_ = "/tmp/bfio-test-XXXXXX";
};

}  // namespace bfio::testing
