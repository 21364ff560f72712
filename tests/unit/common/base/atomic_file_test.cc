#include "common/base/atomic_file.h"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace bfio {
namespace {

using ::testing::HasSubstr;

class AtomicFileTest : public ::testing::Test {
 protected:
  AtomicFileTest() : directory_(absl::StrCat(::testing::TempDir(), "atomic_file_test")) {
    std::filesystem::remove_all(directory_);
    std::filesystem::create_directory(directory_);
  }
  ~AtomicFileTest() override { std::filesystem::remove_all(directory_); }

  std::string Path(const std::string& name) const { return absl::StrCat(directory_, "/", name); }
  static std::string Read(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  }
  int Entries() const {
    const std::filesystem::directory_iterator entries(directory_);
    return static_cast<int>(std::distance(begin(entries), end(entries)));
  }

  const std::string directory_;
};

TEST_F(AtomicFileTest, WritesAllBytesAndLeavesNothingElse) {
  const std::string text("bytes\0and more\n", 15);
  ASSERT_TRUE(WriteFileAtomically(Path("a.csv"), text).ok());
  EXPECT_EQ(Read(Path("a.csv")), text);
  EXPECT_EQ(Entries(), 1);
}

TEST_F(AtomicFileTest, ReplacesAnOlderFile) {
  ASSERT_TRUE(WriteFileAtomically(Path("a.csv"), "a long first text").ok());
  ASSERT_TRUE(WriteFileAtomically(Path("a.csv"), "").ok());
  EXPECT_EQ(Read(Path("a.csv")), "");
}

TEST_F(AtomicFileTest, AMissingDirectoryIsNamed) {
  const absl::Status status = WriteFileAtomically(Path("missing/a.csv"), "text");
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr("missing/a.csv"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("No such file or directory"));
}

TEST_F(AtomicFileTest, AFailedMoveKeepsTheOldFileAndRemovesTheTemporaryOne) {
  std::filesystem::create_directory(Path("taken"));
  const absl::Status status = WriteFileAtomically(Path("taken"), "text");
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(std::string(status.message()), HasSubstr(Path("taken")));
  EXPECT_TRUE(std::filesystem::is_directory(Path("taken")));
  EXPECT_EQ(Entries(), 1);
}

TEST_F(AtomicFileTest, AnEmptyPathIsRefused) {
  EXPECT_EQ(WriteFileAtomically("", "text").code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace bfio
