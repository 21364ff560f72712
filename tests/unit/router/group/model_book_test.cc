#include "router/group/model_book.h"

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace bfio::router {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;

TEST(ModelBook, AModelExpiresWhenNoGroupHasServedItForAWhile) {
  ModelBook book;
  const absl::Time start = absl::UnixEpoch();
  const absl::Duration patience = absl::Seconds(5);
  const uint32_t aa = book.NumberOf("aa"), bb = book.NumberOf("bb");
  EXPECT_EQ(book.NumberOf("aa"), aa);
  EXPECT_THAT(book.known(), ElementsAre(Pair(aa, "aa"), Pair(bb, "bb")));
  EXPECT_EQ(book.NextExpiry(patience), absl::InfiniteFuture()) << "no group has served them";
  book.SetServed({aa, bb}, start);
  book.SetServed({bb}, start + absl::Seconds(1));
  book.SetServed({bb}, start + absl::Seconds(2));
  EXPECT_EQ(book.NextExpiry(patience), start + absl::Seconds(6));
  book.Expire(patience, start + absl::Seconds(5));
  EXPECT_THAT(book.known(), ElementsAre(Pair(aa, "aa"), Pair(bb, "bb")));
  book.Expire(patience, start + absl::Seconds(6));
  EXPECT_THAT(book.known(), ElementsAre(Pair(bb, "bb")));
  EXPECT_EQ(book.NextExpiry(patience), absl::InfiniteFuture());
  book.SetServed({aa, bb}, start + absl::Seconds(7));
  EXPECT_THAT(book.known(), ElementsAre(Pair(aa, "aa"), Pair(bb, "bb")));
}

TEST(ModelBook, AnExpectedModelExpiresAfterTheSameTime) {
  ModelBook book;
  const absl::Time start = absl::UnixEpoch();
  const absl::Duration patience = absl::Seconds(5);
  const uint32_t here = book.NumberOf("here");
  book.SetServed({here}, start);
  EXPECT_FALSE(book.Expect("here", start));
  EXPECT_TRUE(book.Expect("expected", start + absl::Seconds(1)));
  EXPECT_FALSE(book.Expect("expected", start + absl::Seconds(3))) << "counts from the first";
  EXPECT_EQ(book.known().size(), 2u);
  EXPECT_EQ(book.NextExpiry(patience), start + absl::Seconds(6));
  book.Expire(patience, start + absl::Seconds(6));
  EXPECT_THAT(book.known(), ElementsAre(Pair(here, "here")));
  EXPECT_FALSE(book.Expect("expected", start + absl::Seconds(7))) << "it stays gone until it is served";
  EXPECT_EQ(book.known().size(), 1u);
  book.SetServed({here, book.NumberOf("expected")}, start + absl::Seconds(8));
  EXPECT_EQ(book.known().size(), 2u);
}

TEST(ModelBook, ModelsNamedByWorkersAreBounded) {
  ModelBook book;
  const uint32_t served = book.NumberOf("served");
  book.SetServed({served}, absl::UnixEpoch());
  for (size_t i = 0; i < 3 * ModelBook::kMaxModels; ++i) {
    book.NumberOf(absl::StrCat(i));
    ASSERT_LE(book.known().size(), ModelBook::kMaxModels);
  }
  EXPECT_EQ(book.NumberOf("served"), served);
  EXPECT_GT(book.NumberOf("0"), 2 * ModelBook::kMaxModels) << "numbers are never used twice";
}

}  // namespace
}  // namespace bfio::router
