// report_sample_page FILE: writes the sample page, for tests/check_pages and for looking at.
#include <cstdio>

#include "common/base/atomic_file.h"
#include "tests/unit/report/sample_page.h"

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: report_sample_page FILE\n");
    return 2;
  }
  constexpr int kPoints = 100000;
  const absl::Status status = bfio::WriteFileAtomically(argv[1], bfio::report::SamplePage(kPoints).Html());
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
