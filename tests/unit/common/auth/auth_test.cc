// Bearer tokens, the files that hold them, and the keys of tickets.
#include "common/auth/bearer_tokens.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/auth/ticket_keys.h"
#include "common/auth/token_file.h"
#include "common/base/clock.h"
#include "common/base/spdlog.h"
#include "spdlog/sinks/base_sink.h"
#include "tests/testing/temp_folder.h"

namespace bfio {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using Verdict = BearerTokens::Verdict;

constexpr absl::string_view kToken = "correct-horse-battery-staple";
const absl::Time kNow = absl::FromCivil(absl::CivilSecond(2026, 6, 15, 12, 0, 0), absl::UTCTimeZone());

std::string HexOf(absl::string_view token) {
  const Sha256Digest digest = Sha256(token);
  return absl::BytesToHexString(
      absl::string_view(reinterpret_cast<const char*>(digest.data()), digest.size()));
}

// The error message for a token file that consists of this one line.
std::string ErrorOf(absl::string_view text) {
  const absl::StatusOr<BearerTokens> tokens = BearerTokens::Parse(text, "tokens");
  EXPECT_EQ(tokens.status().code(), absl::StatusCode::kInvalidArgument) << text;
  return std::string(tokens.status().message());
}

TEST(Sha256, TheDigestOfAbcMatchesFips180) {
  EXPECT_EQ(HexOf("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

// Parses a valid file.
BearerTokens Tokens(absl::string_view text) {
  auto tokens = BearerTokens::Parse(text, "t");
  EXPECT_TRUE(tokens.ok()) << tokens.status();
  return *std::move(tokens);
}

TEST(BearerTokens, FindsTheOwnerByTokenOrDigest) {
  const BearerTokens tokens = Tokens(absl::StrCat("# both forms\n\nacme\tsha256:", HexOf(kToken),
                                                  "\r\nzeta token:0123456789abcdef # old\n"));
  EXPECT_EQ(tokens.size(), 2u);
  EXPECT_EQ(tokens.Find(kToken, kNow).verdict, Verdict::kValid);
  EXPECT_EQ(tokens.Find(kToken, kNow).name, "acme");
  EXPECT_EQ(tokens.Find("0123456789abcdef", kNow).name, "zeta");
  for (const std::string& wrong : {std::string(), std::string("correct-horse-battery-stapl"),
                                   absl::StrCat(kToken, "x"), HexOf(kToken), std::string(600, 'a')}) {
    EXPECT_EQ(tokens.Find(wrong, kNow).verdict, Verdict::kUnknown) << wrong;
    EXPECT_EQ(tokens.Find(wrong, kNow).name, "");
  }
}

TEST(BearerTokens, ATenantMayHaveSeveralTokensEachWithItsOwnExpiryAndRole) {
  const BearerTokens tokens = Tokens(
      "acme token:old-old-old-old-old expires=2026-06-15T12:00:00Z\n"
      "acme token:new-new-new-new-new role=read expires=2026-06-16\n"
      "acme token:for-ever-for-ever role=operate\n"
      "smg token:for-all-for-all-for-all role=gateway trust_kv_transfer expires=2030-01-01\n");
  const auto at = [&](absl::string_view token, absl::Duration later) {
    return tokens.Find(token, kNow + later).verdict;
  };
  EXPECT_EQ(at("old-old-old-old-old", -absl::Nanoseconds(1)), Verdict::kValid);
  EXPECT_EQ(at("old-old-old-old-old", absl::ZeroDuration()), Verdict::kExpired);
  EXPECT_EQ(at("new-new-new-new-new", absl::Hours(12) - absl::Seconds(1)), Verdict::kValid);
  EXPECT_EQ(at("new-new-new-new-new", absl::Hours(12)), Verdict::kExpired);
  EXPECT_EQ(at("for-ever-for-ever", 1000 * 365 * absl::Hours(24)), Verdict::kValid);
  EXPECT_EQ(tokens.Find("old-old-old-old-old", kNow - absl::Seconds(1)).role, Role::kOperate)
      << "the default";
  EXPECT_EQ(tokens.Find("new-new-new-new-new", kNow).role, Role::kRead);
  EXPECT_EQ(tokens.Find("for-ever-for-ever", kNow).role, Role::kOperate);
  EXPECT_EQ(tokens.Find("for-all-for-all-for-all", kNow).role, Role::kGateway);
  EXPECT_TRUE(tokens.Find("for-all-for-all-for-all", kNow).trust_kv_transfer);
  EXPECT_FALSE(tokens.Find("for-ever-for-ever", kNow).trust_kv_transfer);
  EXPECT_THAT(ErrorOf("a token:0123456789abcdef role=root\n"), HasSubstr("tokens:1: "));
}

TEST(BearerTokens, OneBadLineRefusesTheFileWithoutShowingTheSecret) {
  const std::string good = "acme token:0123456789abcdef\n";
  const std::string secret = "5ecre7-5ecre7-5ecre7";
  for (const std::string& line :
       {std::string("acme"), absl::StrCat("acme ", secret), absl::StrCat("acme sha256:", secret),
        absl::StrCat("acme token:", secret, "!"), std::string("acme token:short"),
        absl::StrCat("acme token:", std::string(513, 'x')), absl::StrCat("acme token:", secret, " tomorrow"),
        absl::StrCat("acme token:", secret, " expires=2026-13-01"),
        absl::StrCat("acme token:", secret, " expires=2026-01-01 again"), absl::StrCat("acme md5:", secret),
        absl::StrCat(std::string(129, 'n'), " token:", secret), absl::StrCat("\x01 token:", secret),
        std::string("zeta token:0123456789abcdef")}) {
    const std::string error = ErrorOf(absl::StrCat(good, "# comment\n", line, "\n"));
    EXPECT_THAT(error, HasSubstr("tokens:3: ")) << line;
    EXPECT_THAT(error, Not(HasSubstr(secret)));
    EXPECT_THAT(error, Not(HasSubstr("0123456789abcdef")));
  }
}

TEST(BearerTokens, ACertificateIsFoundByOneOfItsNames) {
  const BearerTokens tokens = Tokens("scraper cert:prometheus.example role=read\nroot cert:alice\n");
  const BearerTokens::Owner scraper = tokens.FindCertificate({"other", "prometheus.example"}, kNow);
  EXPECT_EQ(scraper.verdict, Verdict::kValid);
  EXPECT_EQ(scraper.name, "scraper");
  EXPECT_EQ(scraper.role, Role::kRead);
  EXPECT_EQ(tokens.FindCertificate({"alice"}, kNow).role, Role::kOperate);
  EXPECT_EQ(tokens.FindCertificate({"bob", ""}, kNow).verdict, Verdict::kUnknown);
  EXPECT_EQ(tokens.FindCertificate({}, kNow).verdict, Verdict::kUnknown);
  // The name of a certificate is not accepted as a token.
  EXPECT_EQ(tokens.Find("prometheus.example", kNow).verdict, Verdict::kUnknown);
  EXPECT_THAT(ErrorOf("a cert:x\nb cert:x\n"),
              HasSubstr("tokens:2: this certificate is already in the file"));
  EXPECT_THAT(ErrorOf("a cert:\n"), HasSubstr("tokens:1: "));
}

TEST(BearerTokens, AFileWithoutATokenOrTooLargeIsRefused) {
  EXPECT_THAT(ErrorOf(""), HasSubstr("no token"));
  EXPECT_THAT(ErrorOf("# nobody\n\n"), HasSubstr("no token"));
  EXPECT_THAT(ErrorOf(std::string(BearerTokens::kMaxFileBytes + 1, '\n')), HasSubstr("larger than"));
  std::string many;
  for (size_t i = 0; i < BearerTokens::kMaxTokens; ++i)
    absl::StrAppend(&many, "t token:", 1'000'000'000'000'000 + i, "\n");
  EXPECT_TRUE(BearerTokens::Parse(many, "tokens").ok());
  EXPECT_THAT(ErrorOf(many + "t token:0123456789abcdef\n"), HasSubstr("tokens:4097: more than 4096"));
}

TEST(BearerToken, IsReadFromTheHeader) {
  EXPECT_EQ(BearerToken("Bearer abc"), "abc");
  EXPECT_EQ(BearerToken("bearer  abc "), "abc");
  EXPECT_EQ(BearerToken("Bearer"), "");
  EXPECT_EQ(BearerToken("Basic abc"), "");
  EXPECT_EQ(BearerToken(""), "");
}

// --- token file ---

// Counts the warnings that contain `text`. Threads: any.
class WarningCount final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  explicit WarningCount(std::string text) : text_(std::move(text)) {}
  int count() const { return count_; }

 private:
  void sink_it_(const spdlog::details::log_msg& message) override {
    if (message.level == spdlog::level::warn &&
        std::string(message.payload.data(), message.payload.size()).find(text_) != std::string::npos)
      ++count_;
  }
  void flush_() override {}

  const std::string text_;
  std::atomic<int> count_ = 0;
};

class TokenFileTest : public ::testing::Test {
 protected:
  // Replaces the file atomically: the new file is complete before it takes the old one's name.
  void Replace(const std::string& text) {
    std::ofstream(path_ + ".new") << text;
    std::filesystem::rename(path_ + ".new", path_);
  }
  // Waits; the limit only keeps a failing test from running forever.
  static bool Until(const std::function<bool()>& condition) {
    const absl::Time deadline = MonotonicNow() + absl::Seconds(60);
    while (!condition() && MonotonicNow() < deadline) absl::SleepFor(absl::Milliseconds(10));
    return condition();
  }

  const testing::TempFolder files_;
  const std::string folder_ = files_.path(), path_ = folder_ + "/tokens";
};

TEST_F(TokenFileTest, IsReadAgainWhenChangedAndKeptWhenInvalid) {
  Replace(
      "\xef\xbb\xbf"
      "acme token:the-first-the-first\n");
  const auto file = TokenFile::Open(path_);
  ASSERT_TRUE(file.ok()) << file.status();
  const auto verdict = [&](absl::string_view token) { return (*file)->Find(token, absl::Now()).verdict; };
  const auto becomes = [&](absl::string_view token, Verdict wanted) {
    return Until([&] { return verdict(token) == wanted; });
  };
  EXPECT_EQ((*file)->Find("the-first-the-first", absl::Now()).name, "acme");
  Replace("acme token:the-first-the-first\nacme token:the-second-the-second\n");
  EXPECT_TRUE(becomes("the-second-the-second", Verdict::kValid));
  EXPECT_EQ(verdict("the-first-the-first"), Verdict::kValid);
  // A file with one bad line causes a warning and changes nothing.
  const auto refused = std::make_shared<WarningCount>("cannot reload the tokens");
  const auto logger = spdlog::default_logger();
  spdlog::set_default_logger(std::make_shared<spdlog::logger>("counted", refused));
  Replace("acme token:the-third-the-third\nnonsense\n");
  EXPECT_TRUE(Until([&] { return refused->count() == 1; }));
  EXPECT_EQ(verdict("the-second-the-second"), Verdict::kValid);
  EXPECT_EQ(verdict("the-third-the-third"), Verdict::kUnknown);
  std::filesystem::remove(path_);
  EXPECT_TRUE(Until([&] { return refused->count() == 2; }));
  EXPECT_EQ(verdict("the-second-the-second"), Verdict::kValid);
  Replace("acme token:the-fourth-the-fourth\n");
  EXPECT_TRUE(becomes("the-fourth-the-fourth", Verdict::kValid));
  EXPECT_TRUE(becomes("the-second-the-second", Verdict::kUnknown));
  spdlog::set_default_logger(logger);
}

TEST_F(TokenFileTest, AnUnreadableFileIsRefusedAtStart) {
  EXPECT_EQ(TokenFile::Open(path_).status().code(), absl::StatusCode::kNotFound);
  EXPECT_FALSE(TokenFile::Open(folder_).ok());
  Replace("nonsense\n");
  EXPECT_EQ(TokenFile::Open(path_).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(TokenFileTest, AClientsTokenIsOneWord) {
  Replace(" the-token-of-a-client \n");
  const absl::StatusOr<std::string> token = ReadTokenFile(path_);
  ASSERT_TRUE(token.ok());
  EXPECT_EQ(*token, "the-token-of-a-client");
  for (const char* bad : {"", "two words", "two\nlines"}) {
    Replace(bad);
    EXPECT_EQ(ReadTokenFile(path_).status().code(), absl::StatusCode::kInvalidArgument) << bad;
  }
}

// --- ticket keys ---

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
