#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/address.h"
#include "common/base/atomic_file.h"
#include "common/base/fair_share.h"
#include "common/base/peer_text.h"
#include "common/base/read_file.h"
#include "common/base/rng.h"
#include "tests/testing/temp_folder.h"

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
  std::string Path(const std::string& name) const { return absl::StrCat(directory_, "/", name); }
  static std::string Read(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  }
  int Entries() const {
    const std::filesystem::directory_iterator entries(directory_);
    return static_cast<int>(std::distance(begin(entries), end(entries)));
  }

  const testing::TempFolder files_;
  const std::string directory_ = files_.path();
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

TEST(Address, AnAccountIsAnIpv4AddressOrAnIpv6NetworkOf64Bits) {
  const std::string v4 = AccountOf("ipv4:10.0.0.1:5");
  EXPECT_NE(AccountOf("ipv4:10.0.0.2:5"), v4);
  EXPECT_EQ(AccountOf("ipv6:%5B::ffff:10.0.0.1%5D:5"), v4);
  const std::string v6 = AccountOf("ipv6:%5B2001:db8:1:2::1%5D:5");
  EXPECT_EQ(v6.size(), 8u);
  EXPECT_EQ(AccountOf("ipv6:%5B2001:db8:1:2:ff::9%5D:6"), v6);
  EXPECT_NE(AccountOf("ipv6:%5B2001:db8:1:3::1%5D:5"), v6);
  EXPECT_EQ(AccountOf("ipv6:%5Bno%5D:5"), "ipv6:%5Bno%5D");
}

// As the ports share: by addresses or tenants alone, or also by their connections. One peer takes what it can
// get: a group on any number of connections, or one connection of a group. All others want one place each.
template <typename Shares>
void ExpectOnesAtOnce(uint64_t seed) {
  Rng rng(seed);
  const bool members = rng.Below(2) == 0, whole_group = !members || rng.Below(2) == 0;
  const uint64_t groups = 2 + rng.Below(6), of_each = members ? 1 + rng.Below(4) : 1;
  const auto whole = static_cast<int64_t>(4 * groups * of_each + rng.Below(64));
  Shares shares(whole);
  std::map<std::string, int64_t> greedy;
  int64_t taken = 0, others = 0;
  std::vector<std::optional<Peer>> held(groups * of_each);
  for (int i = 0; i < 100; ++i) {
    while (rng.Below(10) > 0) {
      const std::string connection = !members ? "" : whole_group ? absl::StrCat(rng.Below(100)) : "g";
      const auto amount = static_cast<int64_t>(1 + rng.Below(3));
      if (!shares.Take({whole_group ? "greedy" : "0", connection}, amount)) continue;
      greedy[connection] += amount;
      taken += amount;
    }
    ASSERT_LE(taken, (whole + 1) / (whole_group ? 2 : 4) + 1);
    const uint64_t one = rng.Below(held.size());
    if (held[one]) {
      shares.Give(*held[one], 1);
      held[one].reset();
      --others;
    } else {
      held[one] = Peer{absl::StrCat(one % groups), members ? absl::StrCat("m", one) : ""};
      ASSERT_TRUE(shares.Take(*held[one], 1)) << "of " << whole << " the greedy one has " << taken;
      ++others;
    }
    ASSERT_LE(taken + others, whole);
    if (taken > 0 && rng.Below(3) == 0) {
      const auto some = greedy.begin();
      shares.Give({whole_group ? "greedy" : "0", some->first}, some->second);
      taken -= some->second;
      greedy.erase(some);
    }
  }
}

TEST(FairShares, WhoWantsLessThanItsShareGetsItAtOnceWhateverOthersDo) {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE(seed);
    ExpectOnesAtOnce<FairShares>(seed);
    ExpectOnesAtOnce<SharedCapacity>(seed);
  }
}

TEST(FairQueue, NobodyWithAFreeShareWaitsForMoreThanOneTurnOfEachOther) {
  Rng rng(47);
  for (int run = 0; run < 40; ++run) {
    FairShares shares(static_cast<int64_t>(1 + rng.Below(16)));
    FairQueue<int> queue;
    const uint64_t groups = 1 + rng.Below(8);
    std::map<std::string, std::map<std::string, int>> waiting;
    // By group, and by member, that waits and might hold more: the turns that others have had since.
    std::map<std::string, std::map<std::string, int>> turns;
    const auto name = [](const Peer& of) { return absl::StrCat(of.group, "/", of.member); };
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
          const bool may_hold = count > 0 && shares.May({group, member});
          if (may_hold) may.insert({group, name({group, member})});
          if (!may_hold) turns[name({group, member})].clear();
        }
        if (!may.contains(group)) turns[group].clear();
      }
      const auto next = queue.Pop(shares);
      if (!next) continue;
      holding.push_back(next->first);
      --waiting[next->first.group][next->first.member];
      const auto& [group, member] = std::pair(next->first.group, name(next->first));
      for (const std::string& served : {group, member}) {
        turns[served].clear();
        may.erase(served);
      }
      for (const std::string& other : may) {
        const bool sibling = absl::StartsWith(other, group + "/");
        if (!sibling && absl::StrContains(other, '/')) continue;
        ASSERT_LE(++turns[other][sibling ? member : group], 1) << other;
      }
    }
  }
}

// A router that reads its engines and tokens again waited for a writer for ever, also at its end.
TEST(ReadFile, WhateverThePathLeadsToTheReaderContinues) {
  const testing::TempFolder files;
  const std::string folder = files.path(), pipe = folder + "/pipe", file = folder + "/f";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_EQ(ReadFile(pipe, 10).value_or("none"), "") << "it has no writer";
  const int silent = open(pipe.c_str(), O_RDWR);
  for (const std::string& path : {folder, folder + "/none", pipe})
    EXPECT_EQ(ReadFile(path, 10).status(), absl::NotFoundError("cannot read " + path));
  ASSERT_EQ(write(silent, "text", 4), 4);
  EXPECT_EQ(ReadFile(pipe, 3).value_or("none"), "text");
  close(silent);
  EXPECT_EQ(ReadFile("/dev/zero", 10).value_or("none").size(), 11u);
  std::ofstream(file) << "text";
  EXPECT_EQ(ReadFile(file, 10).value_or("none"), "text");
}

}  // namespace
}  // namespace bfio
