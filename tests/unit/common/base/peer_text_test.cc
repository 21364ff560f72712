#include "common/base/peer_text.h"

#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"

namespace bfio {
namespace {

TEST(PeerText, ShortTextIsKept) {
  EXPECT_EQ(PeerText(""), "");
  const std::string most(kPeerTextBytes, 'x');
  EXPECT_EQ(PeerText(most), most);
}

TEST(PeerText, LongTextIsCutAndItsLengthIsReported) {
  const std::string cut = PeerText(std::string(16 << 20, 'x'));
  EXPECT_EQ(cut, absl::StrCat(std::string(kPeerTextBytes, 'x'), "... (16777216 bytes)"));
}

TEST(PeerText, NoCharacterIsCutInTwo) {
  // A cut at the byte limit would be in the middle of the last two-byte character.
  const std::string text = absl::StrCat(std::string(kPeerTextBytes - 1, 'x'), "\xc3\xa9 and more");
  EXPECT_EQ(PeerText(text), absl::StrCat(std::string(kPeerTextBytes - 1, 'x'), "... (266 bytes)"));
  // Text that is not UTF-8 is cut at the byte limit.
  EXPECT_EQ(PeerText(std::string(300, '\x80')).size(), kPeerTextBytes - 4 + 15);
}

}  // namespace
}  // namespace bfio
