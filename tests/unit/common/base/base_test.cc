#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/address.h"
#include "common/base/atomic_file.h"
#include "common/base/fair_share.h"
#include "common/base/peer_text.h"
#include "common/base/rng.h"

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

// One peer, and then several, take as much as they get; all others want less than their share.
TEST(FairShares, WhoWantsLessThanItsShareGetsItAtOnceWhateverOthersDo) {
  Rng rng(46);
  for (int run = 0; run < 100; ++run) {
    const auto peers = static_cast<int64_t>(2 + rng.Below(8));
    const int64_t whole = 4 * peers + static_cast<int64_t>(rng.Below(64));
    FairShares shares(whole);
    const Peer greedy{rng.Below(2) == 0 ? "0" : "greedy", "g"};
    std::vector<int64_t> held(static_cast<size_t>(peers));
    int64_t taken = 0;
    for (int i = 0; i < 400; ++i) {
      while (rng.Below(20) > 0 && shares.Take(greedy)) ++taken;
      const uint64_t one = rng.Below(held.size());
      const Peer peer{absl::StrCat(one), "m"};
      if (held[one] == 1) {
        shares.Give(peer);
        held[one] = 0;
      } else {
        ASSERT_TRUE(shares.Take(peer)) << "of " << whole << ", greedy has " << taken;
        held[one] = 1;
      }
      if (taken > 0 && rng.Below(3) == 0) {
        shares.Give(greedy);
        --taken;
      }
      ASSERT_EQ(shares.used(), taken + std::accumulate(held.begin(), held.end(), int64_t{0}));
      ASSERT_LE(shares.used(), whole);
      ASSERT_LE(taken, (whole + 1) / 2);
    }
  }
}

TEST(FairQueue, NobodyWithAFreeShareWaitsForMoreThanOneTurnOfEachOther) {
  Rng rng(47);
  for (int run = 0; run < 40; ++run) {
    FairShares shares(static_cast<int64_t>(1 + rng.Below(16)));
    FairQueue<int> queue;
    const uint64_t groups = 1 + rng.Below(8);
    std::map<std::string, std::map<std::string, int>> waiting;
    // By group that waits and might hold more: the turns that others have had since.
    std::map<std::string, std::map<std::string, int>> turns;
    std::vector<Peer> holding;
    for (int i = 0; i < 500; ++i) {
      // The first group asks as often as all others together.
      const Peer peer{absl::StrCat(rng.Below(2) == 0 ? 0 : rng.Below(groups)), absl::StrCat(rng.Below(3))};
      queue.Push(peer, i);
      ++waiting[peer.group][peer.member];
      if (!holding.empty() && rng.Below(3) > 0) {
        std::swap(holding[rng.Below(holding.size())], holding.back());
        shares.Give(holding.back());
        holding.pop_back();
      }
      std::set<std::string> may;
      for (const auto& [group, members] : waiting) {
        for (const auto& [member, count] : members) {
          if (count > 0 && shares.May({group, member})) may.insert(group);
        }
        if (!may.contains(group)) turns[group].clear();
      }
      const auto next = queue.Pop(shares);
      if (!next) continue;
      holding.push_back(next->first);
      --waiting[next->first.group][next->first.member];
      turns[next->first.group].clear();
      may.erase(next->first.group);
      for (const std::string& group : may) {
        ASSERT_LE(++turns[group][next->first.group], 1) << group;
      }
    }
  }
}

}  // namespace
}  // namespace bfio
