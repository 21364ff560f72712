#include "common/auth/bearer_tokens.h"

#include <gmock/gmock.h>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

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
      "smg token:for-all-for-all-for-all role=gateway\n");
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

}  // namespace
}  // namespace bfio
