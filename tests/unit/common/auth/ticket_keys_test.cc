#include "common/auth/ticket_keys.h"

#include <gtest/gtest.h>

#include <set>

namespace bfio {
namespace {

const std::string kKey(32, 'k'), kOther(32, 'o');
const absl::Time kIssuedAt = absl::FromUnixSeconds(1'800'000'000), kExpiry = kIssuedAt + absl::Seconds(10);

TicketKeys Keys(const std::string& text) {
  return *TicketKeys::Parse(text, "keys");
}

TEST(TicketKeys, ATicketIsGoodForItsFactsUntilItExpires) {
  const TicketKeys keys = Keys(kKey);
  const std::string ticket = keys.Issue("facts", kExpiry);
  EXPECT_EQ(ticket.size(), TicketKeys::kTicketBytes);
  EXPECT_TRUE(keys.Claim(ticket, "facts", kIssuedAt));
  EXPECT_TRUE(keys.Claim(ticket, "facts", kIssuedAt + absl::Seconds(9)));
  EXPECT_FALSE(keys.Claim(ticket, "facts", kExpiry));
  EXPECT_FALSE(keys.Claim(ticket, "fact", kIssuedAt));
  EXPECT_FALSE(keys.Claim(ticket, "", kIssuedAt));
  EXPECT_TRUE(Keys(kKey).Claim(ticket, "facts", kIssuedAt)) << "another process with the same key";
}

TEST(TicketKeys, NothingButAnUnchangedTicketPasses) {
  const TicketKeys keys = Keys(kKey);
  const std::string ticket = keys.Issue("facts", kExpiry);
  for (size_t i = 0; i < ticket.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string changed = ticket;
      changed[i] = static_cast<char>(changed[i] ^ (1 << bit));
      EXPECT_FALSE(keys.Claim(changed, "facts", kIssuedAt)) << "bit " << bit << " of byte " << i;
    }
    EXPECT_FALSE(keys.Claim(ticket.substr(0, i), "facts", kIssuedAt));
  }
  EXPECT_FALSE(keys.Claim(ticket + "x", "facts", kIssuedAt));
  EXPECT_FALSE(Keys(kOther).Claim(ticket, "facts", kIssuedAt));
}

TEST(TicketKeys, AClaimIsPartOfTheTicketAndNeitherItNorTheExpiryCanMoveIntoTheFacts) {
  const TicketKeys keys = Keys(kKey);
  const std::string claim(TicketKeys::kMaxClaimBytes, 'c');
  const std::string ticket = keys.Issue("facts", kExpiry, claim);
  EXPECT_EQ(keys.Claim(ticket, "facts", kIssuedAt), claim);
  EXPECT_EQ(keys.Claim(keys.Issue("facts", kExpiry), "facts", kIssuedAt), "");
  std::string other = ticket;
  other[20] = 'd';
  EXPECT_FALSE(keys.Claim(other, "facts", kIssuedAt));
  std::string shorter = ticket;
  shorter[9] = static_cast<char>(TicketKeys::kMaxClaimBytes - 1);
  shorter.erase(10 + TicketKeys::kMaxClaimBytes - 1, 1);
  EXPECT_FALSE(keys.Claim(shorter, "cfacts", kIssuedAt));
  std::string later = keys.Issue("", kIssuedAt);
  EXPECT_FALSE(keys.Claim(later, "", kIssuedAt + absl::Seconds(1)));
  later[1] = '\x01';
  EXPECT_FALSE(keys.Claim(later, "", kIssuedAt));
}

TEST(TicketKeys, AKeyIsReplacedInTwoSteps) {
  const std::string of_old = Keys(kKey).Issue("facts", kExpiry);
  const TicketKeys both = Keys("# new\n" + kOther + "\n" + kKey + " # old\n\n");
  EXPECT_TRUE(both.Claim(of_old, "facts", kIssuedAt));
  EXPECT_TRUE(Keys(kOther).Claim(both.Issue("facts", kExpiry), "facts", kIssuedAt));
}

TEST(TicketKeys, AFileIsReadWholeOrNotAtAll) {
  std::vector<std::string> texts = {""};
  for (const std::string text : {"", "# nothing\n", "short", "a b", "\x01"}) {
    texts.push_back(text);
    texts.push_back(kKey + "\n" + text + "\nshort");
  }
  for (int i = 0; i < 9; ++i) texts[0] += kKey + "\n";
  texts.push_back(std::string(513, 'k'));
  for (const std::string& text : texts)
    EXPECT_TRUE(absl::IsInvalidArgument(TicketKeys::Parse(text, "keys").status())) << text;
  EXPECT_TRUE(absl::IsNotFound(TicketKeys::Open("/nowhere/keys").status()));
  // The error message does not contain the key.
  EXPECT_EQ(TicketKeys::Parse("sh0rt", "keys").status().message().find("sh0rt"), std::string::npos);
}

TEST(RandomId, IsUnique) {
  std::set<std::string> ids;
  for (int i = 0; i < 1000; ++i) ids.insert(RandomId());
  EXPECT_EQ(ids.size(), 1000u);
  for (const std::string& id : ids) {
    EXPECT_EQ(id.size(), 32u);
    EXPECT_EQ(id.find_first_not_of("0123456789abcdef"), std::string::npos) << id;
  }
}

}  // namespace
}  // namespace bfio
