// Configuration files, protobuf text and JSON, of all four programs.
#include "bfio/v1/config.pb.h"
#include "common/config/command_line.h"
#include "google/protobuf/stubs/logging.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const google::protobuf::LogSilencer quiet;
  const std::string text(bfio::fuzz::Text(data, size));
  bfio::v1::RouterConfig router;
  bfio::v1::WorkerConfig worker;
  bfio::v1::LoadgenConfig loadgen;
  bfio::v1::SimConfig sim;
  for (google::protobuf::Message* config :
       std::initializer_list<google::protobuf::Message*>{&router, &worker, &loadgen, &sim}) {
    const absl::Status status = bfio::ParseConfig(text, "fuzz", *config);
    if (status.ok()) continue;
    bfio::fuzz::Check(status.message().find('\n') == absl::string_view::npos, "an error is one line");
  }
  return 0;
}
