// The decision log's reader: its records as structs of the core and as JSON.
//
// The first byte selects the input: a file as it is, or payloads to which a valid magic, length and checksum
// are added, so that the fuzzer does not have to find those.
#include <stdlib.h>
#include <unistd.h>

#include <cstdio>

#include "router/record/codec.h"
#include "router/record/log_format.h"
#include "router/record/log_reader.h"
#include "tests/fuzz/fuzz.h"

namespace {

std::string Folder() {
  char name[] = "/dev/shm/bfio-fuzz-XXXXXX";
  bfio::fuzz::Check(mkdtemp(name) != nullptr, "there is a folder for the log");
  return name;
}

std::string FileOf(const uint8_t* data, size_t size) {
  if (size == 0) return "";
  if (data[0] % 2 == 0) return std::string(bfio::fuzz::Text(data + 1, size - 1));
  std::string file(bfio::record::kMagic);
  bfio::fuzz::Input input(data + 1, size - 1);
  while (!input.empty()) file += bfio::record::Frame(input.Chunk());
  return file;
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::string folder = Folder();
  static const std::string path = folder + "/log";
  static const bool cleaned = std::atexit([] {
                                unlink((path + ".000001").c_str());
                                rmdir(folder.c_str());
                              }) == 0;
  (void)cleaned;
  const std::string bytes = FileOf(data, size);
  std::FILE* file = std::fopen((path + ".000001").c_str(), "w");
  std::fwrite(bytes.data(), 1, bytes.size(), file);
  std::fclose(file);
  auto reader = bfio::record::LogReader::Open(path);
  if (!reader.ok()) return 0;
  bfio::record::Record record;
  for (size_t records = 0;; ++records) {
    bfio::fuzz::Check(records <= size, "no record is shorter than a byte");
    const auto more = reader->Next(record);
    if (!more.ok() || !*more) break;
    (void)bfio::record::ToJson(record);
  }
  return 0;
}
