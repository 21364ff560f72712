#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/address.h"
#include "common/base/atomic_file.h"
#include "common/base/peer_text.h"

namespace bfio {
namespace {

using ::testing::HasSubstr;

TEST(AddressTest, AcceptsHostNamesNumbersAndBrackets) {
  for (const char* text :
       {"localhost:50051", "10.0.0.1:1", "router-0.bfio_ns.svc:65535", "[::1]:80", "[fe80::1%eth0]:9"}) {
    const auto address = ParseAddress(text);
    ASSERT_TRUE(address.ok()) << address.status();
    EXPECT_EQ(address->ToString(), text);
  }
  EXPECT_EQ(ParseAddress("[::1]:80")->host, "::1");
  EXPECT_EQ(ParseAddress("0.0.0.0:0", true)->port, 0);
}

TEST(AddressTest, AnythingElseIsRefusedInOneLine) {
  for (const char* text : {"",           ":",          "host",    "host:",          ":80",     "host:0",
                           "host:65536", "host:99999", "host:-1", "host:+1",        "host: 1", "host:80x",
                           "::1:80",     "[::1:80",    "[::1]",   "http://host:80", "a b:1",   "host:000080",
                           "[host]:80",  "[]:1"}) {
    const auto status = ParseAddress(text).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(status.message()), HasSubstr("HOST:PORT is expected")) << text;
  }
}

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

TEST_F(AtomicFileTest, ReplacesTheFileAndLeavesNothingElse) {
  const std::string text("bytes\0and more\n", 15);
  for (const std::string& written : {std::string("a long first text"), text, std::string()}) {
    ASSERT_TRUE(WriteFileAtomically(Path("a.csv"), written).ok());
    EXPECT_EQ(Read(Path("a.csv")), written);
    EXPECT_EQ(Entries(), 1);
  }
}

TEST_F(AtomicFileTest, AMissingDirectoryIsNamedAndAnEmptyPathRefused) {
  const absl::Status status = WriteFileAtomically(Path("missing/a.csv"), "text");
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr("missing/a.csv"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("No such file or directory"));
  EXPECT_EQ(WriteFileAtomically("", "text").code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(AtomicFileTest, AFailedMoveKeepsTheOldFileAndRemovesTheTemporaryOne) {
  std::filesystem::create_directory(Path("taken"));
  const absl::Status status = WriteFileAtomically(Path("taken"), "text");
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(std::string(status.message()), HasSubstr(Path("taken")));
  EXPECT_TRUE(std::filesystem::is_directory(Path("taken")));
  EXPECT_EQ(Entries(), 1);
}

TEST(PeerText, LongTextIsCutBetweenCharactersAndItsLengthIsReported) {
  const std::string most(kPeerTextBytes, 'x'), less(kPeerTextBytes - 1, 'x');
  EXPECT_EQ(PeerText(""), "");
  EXPECT_EQ(PeerText(most), most);
  EXPECT_EQ(PeerText(std::string(16 << 20, 'x')), absl::StrCat(most, "... (16777216 bytes)"));
  // A cut at the byte limit would be in the middle of the last two-byte character.
  EXPECT_EQ(PeerText(absl::StrCat(less, "\xc3\xa9 and more")), absl::StrCat(less, "... (266 bytes)"));
  // Text that is not UTF-8 is cut at the byte limit.
  EXPECT_EQ(PeerText(std::string(300, '\x80')).size(), kPeerTextBytes - 4 + 15);
}

}  // namespace
}  // namespace bfio
