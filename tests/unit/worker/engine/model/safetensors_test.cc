#include "worker/engine/model/safetensors.h"

#include <sys/resource.h>
#include <sys/stat.h>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "tests/testing/safetensors_bytes.h"

namespace bfio::worker {
namespace {

using bfio::testing::ParseAndTouch;
using bfio::testing::SafetensorsBytes;
using bfio::testing::WriteBytes;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// Two tensors of 28 bytes in all: a with 6 halves, b with 4 floats.
constexpr char kGood[] =
    R"({"__metadata__":{"format":"pt"},"b":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]},)"
    R"("a":{"dtype":"BF16","shape":[3,2],"data_offsets":[16,28]}})";

void ExpectRefused(const std::string& file, const std::string& why,
                   absl::StatusCode code = absl::StatusCode::kInvalidArgument) {
  const absl::StatusOr<TensorMap> tensors = ParseAndTouch(file);
  ASSERT_FALSE(tensors.ok()) << why;
  EXPECT_EQ(tensors.status().code(), code) << tensors.status();
  EXPECT_THAT(std::string(tensors.status().message()),
              AllOf(HasSubstr("x.safetensors: "), HasSubstr(why), Not(HasSubstr("\n"))));
  EXPECT_LT(tensors.status().message().size(), 500u);
}

// A header with one tensor named t.
std::string One(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return absl::StrCat(R"({"t":{"dtype":")", dtype, R"(","shape":)", shape, R"(,"data_offsets":)", offsets,
                      "}}");
}

TEST(Safetensors, TensorsLieWhereTheHeaderSays) {
  const std::string path = ::testing::TempDir() + "/good.safetensors";
  const std::string bytes = SafetensorsBytes(kGood, 28);
  WriteBytes(path, bytes);
  const auto file = SafetensorsFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_EQ((*file)->tensors().size(), 2u);
  const TensorView a = (*file)->tensors().at("a"), b = (*file)->tensors().at("b");
  EXPECT_EQ(a.dtype, DType::kBF16);
  EXPECT_THAT(a.shape, ElementsAre(3, 2));
  EXPECT_EQ(a.bytes(), 12);
  EXPECT_EQ(std::memcmp(a.data, bytes.data() + bytes.size() - 12, 12), 0);
  EXPECT_EQ(static_cast<int>(b.data[0]), 0);
  EXPECT_EQ(b.data + 16, a.data);
}

TEST(Safetensors, ScalarsEmptyTensorsAndEmptyFilesAreLegal) {
  const auto scalar = ParseAndTouch(SafetensorsBytes(One("F16", "[]", "[0,2]"), 2));
  ASSERT_TRUE(scalar.ok()) << scalar.status();
  EXPECT_THAT(scalar->at("t").shape, IsEmpty());
  EXPECT_EQ(scalar->at("t").elements(), 1);
  EXPECT_TRUE(ParseAndTouch(SafetensorsBytes(One("F32", "[4,0]", "[0,0]"), 0)).ok());
  EXPECT_TRUE(ParseAndTouch(SafetensorsBytes("{}", 0)).ok());
  EXPECT_TRUE(ParseAndTouch(SafetensorsBytes(R"({"__metadata__":null})", 0)).ok());
}

TEST(Safetensors, EveryTruncationIsRefused) {
  const std::string file = SafetensorsBytes(kGood, 28);
  ASSERT_TRUE(ParseAndTouch(file).ok());
  for (size_t size = 0; size < file.size(); ++size) {
    const auto tensors = ParseAndTouch(absl::string_view(file).substr(0, size));
    ASSERT_FALSE(tensors.ok()) << size;
    EXPECT_EQ(tensors.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(tensors.status().message()), HasSubstr("truncated")) << size;
  }
}

TEST(Safetensors, LengthsAreChecked) {
  ExpectRefused(SafetensorsBytes(kGood, 28, ~uint64_t{0}), "the header length is 18446744073709551615 bytes");
  ExpectRefused(SafetensorsBytes(kGood, 28, 100'000'001), "more than the 100000000 allowed");
  ExpectRefused(SafetensorsBytes(kGood, 28, 100'000'000),
                "is truncated: the header length is 100000000 bytes");
  ExpectRefused(SafetensorsBytes(kGood, 28, 0), "does not begin with '{'");
  ExpectRefused(SafetensorsBytes("", 0, 0), "does not begin with '{'");
  ExpectRefused(SafetensorsBytes(" {}", 5, 3), "does not begin with '{'");
  ExpectRefused("GGUF\x03", "is truncated: 5 bytes");
}

TEST(Safetensors, InvalidHeadersAreRefused) {
  const auto refused = [](const std::string& header, const std::string& why) {
    ExpectRefused(SafetensorsBytes(header, 8), why);
  };
  refused("{", "is not JSON");
  refused("{}{}", "is not JSON");
  refused(std::string("{}\0{}", 5), "zero byte");
  refused("{\"t\":[]}", "has an array where an object belongs, in tensor 't'");
  refused("{\"t\":null}", "has null where an object belongs, in tensor 't'");
  refused("{\"__metadata__\":{\"a\":{}}}", "in __metadata__");
  refused("{\"__metadata__\":{\"a\":1}}", "has 1 where none belongs, in __metadata__");
  refused(R"({"t":{"dtype":"F32","shape":[2]}})", "has no data_offsets, in tensor 't'");
  refused(R"({"t":{"shape":[2],"data_offsets":[0,8]}})", "has no dtype, in tensor 't'");
  refused(R"({"t":{"dtype":"F32","data_offsets":[0,8]}})", "has no shape, in tensor 't'");
  refused(R"({"t":{"dtype":"F32","shape":[2],"data_offsets":[0,8],"x":1}})",
          "unknown field 'x', in tensor 't'");
  refused(R"({"t":{"dtype":"F32","dtype":"F16","shape":[2],"data_offsets":[0,8]}})", "gives 'dtype' twice");
  refused(One("F32", "[-2]", "[0,8]"), "has -2 where a whole number belongs, in tensor 't', shape");
  refused(One("F32", "[2.0]", "[0,8]"), "has 2.0 where a whole number belongs, in tensor 't', shape");
  refused(One("F32", "[18446744073709551616]", "[0,8]"), "where a whole number belongs");
  refused(One("F32", "[[2]]", "[0,8]"), "an array where a whole number belongs, in tensor 't'");
  refused(One("F32", "[1,1,1,1,1,1,1,1,2]", "[0,8]"), "more than 8 dimensions, in tensor 't'");
  refused(One("F32", "2", "[0,8]"), "has 2 where an array belongs, in tensor 't'");
  refused(One("F32", "[2]", "[0,8,8]"), "more than two numbers, in tensor 't'");
  refused(One("F32", "[2]", "[8]"), "fewer than two numbers, in tensor 't'");
  refused(One("F32", "[2]", "\"08\""), "has '08' where an array belongs, in tensor 't'");
  refused("{\"\xff\":1}", "is not JSON");
  refused(
      R"({"t":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"t":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
      "has 't' twice");
}

TEST(Safetensors, OtherDTypesAreRefusedByName) {
  for (const char* dtype : {"I64", "F64", "F8_E4M3", "BOOL", "U8", "", "bf16"}) {
    ExpectRefused(SafetensorsBytes(One(dtype, "[1]", "[0,8]"), 8),
                  absl::StrCat("tensor 't': has dtype '", dtype, "'; BF16, F16 and F32 are supported"),
                  absl::StatusCode::kUnimplemented);
  }
}

TEST(Safetensors, ShapesAndOffsetsMustAgree) {
  ExpectRefused(SafetensorsBytes(One("F32", "[3]", "[0,8]"), 8),
                "tensor 't': has shape [3] of F32, 12 bytes, but data_offsets have 8");
  ExpectRefused(SafetensorsBytes(One("F32", "[2]", "[8,0]"), 8),
                "tensor 't': begins at 8 and ends before that");
  ExpectRefused(SafetensorsBytes(One("F32", "[4]", "[0,16]"), 8),
                "tensor 't': ends at byte 16 of the data, which has only 8: truncated?");
  ExpectRefused(SafetensorsBytes(One("F32", "[0]", "[18446744073709551608,18446744073709551608]"), 8),
                "tensor 't': ends at byte 18446744073709551608");
}

TEST(Safetensors, ShapesThatOverflowAreRefused) {
  // 2^62 floats have 2^64 bytes, which overflows to 0 in 64 bits.
  ExpectRefused(SafetensorsBytes(One("F32", "[4611686018427387904]", "[0,0]"), 0), "which is too large");
  ExpectRefused(SafetensorsBytes(One("F16", "[4294967296,2147483648]", "[0,0]"), 0), "which is too large");
  ExpectRefused(SafetensorsBytes(One("F32", "[18446744073709551615]", "[0,8]"), 8), "which is too large");
  ExpectRefused(SafetensorsBytes(One("F32", "[9223372036854775807,0]", "[0,0]"), 0), "which is too large");
}

TEST(Safetensors, EveryByteBelongsToOneTensor) {
  const auto two = [](const std::string& first, const std::string& second) {
    return absl::StrCat(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":)", first,
                        R"(},"b":{"dtype":"F32","shape":[2],"data_offsets":)", second, "}}");
  };
  EXPECT_TRUE(ParseAndTouch(SafetensorsBytes(two("[8,16]", "[0,8]"), 16)).ok());
  ExpectRefused(SafetensorsBytes(two("[0,8]", "[4,12]"), 12), "tensor 'b': overlaps tensor 'a'");
  ExpectRefused(SafetensorsBytes(two("[0,8]", "[0,8]"), 8), "tensor 'b': overlaps tensor 'a'");
  ExpectRefused(SafetensorsBytes(two("[0,8]", "[12,20]"), 20),
                "tensor 'b': a gap of 4 bytes lies between it and tensor 'a'");
  ExpectRefused(SafetensorsBytes(two("[4,12]", "[12,20]"), 20),
                "tensor 'a': a gap of 4 bytes lies between it and the header");
  ExpectRefused(SafetensorsBytes(two("[0,8]", "[8,16]"), 20), "4 bytes after tensor 'b' belong to no tensor");
  ExpectRefused(SafetensorsBytes("{}", 3), "3 bytes after the header belong to no tensor");
}

TEST(Safetensors, UnalignedTensorsAreRefused) {
  ExpectRefused(SafetensorsBytes(R"({"a":{"dtype":"F16","shape":[1],"data_offsets":[0,2]},)"
                                 R"("b":{"dtype":"F32","shape":[1],"data_offsets":[2,6]}})",
                                 6),
                "tensor 'b': begins at 2 of the data and is not aligned to its 4-byte elements");
  const std::string header = One("F32", "[1]", "[0,4]") + " ";
  ASSERT_NE(header.size() % 4, 0u);
  ExpectRefused(SafetensorsBytes(header, 4, header.size()), "is not aligned to its 4-byte elements");
}

TEST(Safetensors, OnlyRegularFilesAreAccepted) {
  const std::string dir = ::testing::TempDir();
  const auto missing = SafetensorsFile::Open(dir + "/missing.safetensors");
  EXPECT_EQ(missing.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(missing.status().message()), HasSubstr("missing.safetensors: cannot be opened"));
  EXPECT_THAT(std::string(SafetensorsFile::Open(dir).status().message()), HasSubstr("is not a regular file"));
  const std::string pipe = dir + "/pipe.safetensors";
  remove(pipe.c_str());
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_THAT(std::string(SafetensorsFile::Open(pipe).status().message()),
              HasSubstr("is not a regular file"));
}

int64_t PeakKilobytes() {
  struct rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss;
}

TEST(Safetensors, HostileHeadersDoNotExhaustMemory) {
  constexpr size_t kSize = 32 << 20;
  std::string many = "{", nested = "{\"t\":" + std::string(kSize, '[');
  for (int i = 0; i < 200'000; ++i) {
    absl::StrAppend(&many, i == 0 ? "" : ",", "\"", i,
                    R"(":{"dtype":"F32","shape":[0],"data_offsets":[0,0]})");
  }
  many += "}";
  const std::string deep = SafetensorsBytes(nested, 0), wide = SafetensorsBytes(many, 0);
  const std::string numbers = SafetensorsBytes(
      "{\"t\":{\"shape\":[1" +
          [] {
            std::string ones;
            for (size_t i = 0; i < kSize / 2; ++i) ones += ",1";
            return ones;
          }(),
      0);
  const int64_t before = PeakKilobytes();
  ExpectRefused(deep, "is nested more than 32 deep");
  ExpectRefused(wide, "has more than 100000 tensors");
  ExpectRefused(numbers, "has more than 64 values");
  // A copy of the file, and 100,000 entries.
  EXPECT_LT(PeakKilobytes() - before, 150 * 1024);
}

}  // namespace
}  // namespace bfio::worker
