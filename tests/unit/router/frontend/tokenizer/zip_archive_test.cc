#include "router/frontend/tokenizer/zip_archive.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

namespace bfio::router {
namespace {

TEST(ZipArchive, OthersCanReadIt) {
  const std::filesystem::path folder = std::filesystem::path(::testing::TempDir()) / "zip_archive_test";
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  const std::string large(300'000, 'x');
  std::ofstream(folder / "a.zip", std::ios::binary)
      << ZipArchive({{"tokenizer.json", "{}"}, {"large.model", large}, {"empty.jinja", ""}});
  // Python's own library reads the archive and verifies its checksums.
  const std::string command =
      "python3 -c 'import sys, zipfile; z = zipfile.ZipFile(sys.argv[1]); assert z.testzip() is None; "
      "assert [(i.filename, i.file_size) for i in z.infolist()] == [(\"tokenizer.json\", 2), "
      "(\"large.model\", 300000), (\"empty.jinja\", 0)]; assert z.read(\"large.model\") == b\"x\" * 300000; "
      "assert z.read(\"tokenizer.json\") == b\"{}\"' " +
      (folder / "a.zip").string();
  EXPECT_EQ(std::system(command.c_str()), 0);
}

TEST(ZipArchive, TheSameFilesGiveTheSameBytes) {
  EXPECT_EQ(ZipArchive({{"a", "b"}}), ZipArchive({{"a", "b"}}));
  EXPECT_NE(ZipArchive({{"a", "b"}}), ZipArchive({{"a", "c"}}));
}

}  // namespace
}  // namespace bfio::router
