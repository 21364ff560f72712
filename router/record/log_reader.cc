#include "router/record/log_reader.h"

#include <algorithm>
#include <filesystem>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "router/record/log_format.h"

namespace bfio::record {
namespace {

// For example "log.000012" to "log" and 12.
std::optional<std::pair<std::string, uint64_t>> SplitSegmentPath(const std::string& path) {
  const size_t dot = path.rfind('.');
  if (dot == std::string::npos || path.size() - dot - 1 < 6) return std::nullopt;
  const std::string digits = path.substr(dot + 1);
  uint64_t number = 0;
  if (!std::all_of(digits.begin(), digits.end(), absl::ascii_isdigit) || !absl::SimpleAtoi(digits, &number)) {
    return std::nullopt;
  }
  return std::pair(path.substr(0, dot), number);
}

std::vector<std::string> Candidates(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) {
    std::vector<std::string> all;
    for (const SegmentFile& file : ListSegments(path)) all.push_back(file.path);
    return all;
  }
  std::vector<std::string> all = {path};
  if (const auto split = SplitSegmentPath(path)) {
    for (const SegmentFile& file : ListSegments(split->first)) {
      if (file.number > split->second) all.push_back(file.path);
    }
  }
  return all;
}

}  // namespace

absl::StatusOr<LogReader> LogReader::Open(const std::string& path) {
  struct Found {
    std::string path;
    // For a segment of another format, or with a damaged start: why it cannot be read.
    absl::Status status;
    LogHeader header;
  };
  std::vector<Found> found;
  const std::vector<std::string> candidates = Candidates(path);
  for (const std::string& candidate : candidates) {
    LogReader one;
    one.files_ = {candidate};
    absl::Status status = one.OpenFile(0);
    Record record;
    if (status.ok()) {
      absl::StatusOr<bool> more = one.Next(record);
      if (!more.ok()) status = more.status();
      // A router that was killed at startup may leave a segment without a header.
      if (more.ok() && !*more) continue;
    }
    auto* const header = std::get_if<LogHeader>(&record);
    if (status.ok() && header == nullptr) status = one.Damaged("does not begin with a header");
    found.push_back({candidate, std::move(status), header == nullptr ? LogHeader() : std::move(*header)});
  }
  if (found.empty()) {
    return absl::NotFoundError(
        absl::StrCat("no decision log at ", path, candidates.empty() ? "" : ": its segments are empty"));
  }
  // When `path` names a segment, its session is read; otherwise the last session.
  std::error_code error;
  const bool named = std::filesystem::is_regular_file(path, error);
  const Found& chosen = named ? found.front() : found.back();
  if (!chosen.status.ok()) return chosen.status;
  const uint64_t session = chosen.header.session;
  const auto of_session = [&](const Found& one) { return one.status.ok() && one.header.session == session; };
  const auto first = std::find_if(found.begin(), found.end(), of_session);
  const auto last = std::find_if(found.rbegin(), found.rend(), of_session).base();
  // Unusable segments of other sessions do not prevent reading this one.
  for (auto one = first; one != last; ++one) {
    if (!one->status.ok()) return one->status;
  }
  if (first != found.begin() && !std::prev(first)->status.ok() && first->header.segment > 0)
    return std::prev(first)->status;
  LogReader reader;
  std::set<uint64_t> earlier;
  for (Found& one : found) {
    if (!one.status.ok()) continue;
    if (one.header.session != session) {
      if (reader.files_.empty()) earlier.insert(one.header.session);
      continue;
    }
    const bool follows = reader.headers_.empty() || one.header.segment == reader.headers_.back().segment + 1;
    if (!follows) {  // a segment is missing: reading starts after it
      reader.files_.clear();
      reader.headers_.clear();
    }
    reader.files_.push_back(std::move(one.path));
    reader.headers_.push_back(std::move(one.header));
  }
  reader.earlier_sessions_ = static_cast<int64_t>(earlier.size());
  BFIO_RETURN_IF_ERROR(reader.OpenFile(0));
  return reader;
}

absl::Status LogReader::OpenFile(size_t index) {
  at_ = index;
  offset_ = 0;
  block_.clear();
  position_ = 0;
  file_ = std::ifstream(files_[at_], std::ios::binary);
  std::error_code error;
  const auto size = std::filesystem::file_size(files_[at_], error);
  if (!file_ || error) return absl::NotFoundError(absl::StrCat("cannot read ", files_[at_]));
  left_ = static_cast<int64_t>(size);
  std::string magic(std::min(kMagic.size(), static_cast<size_t>(size)), '\0');
  if (!file_.read(magic.data(), static_cast<std::streamsize>(magic.size())) ||
      magic != kMagic.substr(0, magic.size())) {
    if (absl::StartsWith(magic, kAnyMagic) && magic.size() == kMagic.size()) {
      return absl::InvalidArgumentError(absl::StrCat(files_[at_], ": decision log format ",
                                                     magic.substr(6, 1), "; this program reads format ",
                                                     kMagic.substr(6, 1)));
    }
    return absl::InvalidArgumentError(absl::StrCat(files_[at_], " is not a decision log"));
  }
  left_ -= static_cast<int64_t>(magic.size());
  offset_ += static_cast<int64_t>(magic.size());
  return absl::OkStatus();
}

int64_t LogReader::bytes() const {
  int64_t sum = 0;
  for (const std::string& file : files_) {
    std::error_code error;
    const auto size = std::filesystem::file_size(file, error);
    if (!error) sum += static_cast<int64_t>(size);
  }
  return sum;
}

std::string LogReader::Where() const {
  return absl::StrCat(files_[at_], ", block at ", offset_);
}

absl::Status LogReader::Damaged(absl::string_view what) const {
  return absl::DataLossError(absl::StrCat("the decision log is damaged: ", Where(), ": ", what));
}

absl::StatusOr<bool> LogReader::Next(Record& record) {
  while (ending_ == Ending::kOpen) {
    if (position_ < block_.size()) {
      absl::StatusOr<bool> parsed = ParseRecord(record);
      if (!parsed.ok()) return parsed;
      if (!*parsed) break;  // the file ends within this record
      const auto* const end = std::get_if<LogEnd>(&record);
      if (end == nullptr) return true;
      if (cut_) return Damaged("its block continues after the end record");
      ending_ = *end == LogEnd::kOverflow   ? Ending::kOverflow
                : *end == LogEnd::kTooLarge ? Ending::kTooLarge
                                            : Ending::kClosed;
      break;
    }
    if (cut_) {
      ending_ = Ending::kTruncated;
      break;
    }
    absl::StatusOr<bool> block = NextBlock();
    if (!block.ok()) return block;
    if (*block) continue;
    if (in_last_file()) {
      ending_ = Ending::kNoEnd;
      break;
    }
    BFIO_RETURN_IF_ERROR(OpenFile(at_ + 1));
  }
  return false;
}

absl::StatusOr<bool> LogReader::NextBlock() {
  offset_ += block_.empty() ? 0 : static_cast<int64_t>(kFrameBytes + block_.size());
  block_.clear();
  position_ = 0;
  if (left_ == 0) return false;
  if (left_ < static_cast<int64_t>(kFrameBytes)) {
    if (!in_last_file()) return Damaged("ends within a frame, and is not the last segment");
    cut_ = true;
    left_ = 0;
    return true;
  }
  char frame[kFrameBytes];
  if (!file_.read(frame, kFrameBytes)) return Damaged("cannot be read");
  left_ -= static_cast<int64_t>(kFrameBytes);
  const size_t size = LittleEndian32(frame);
  if (size == 0 || size > kMaxBlockBytes)
    return Damaged(absl::StrCat("a block's size is ", size, " bytes, which is out of range"));
  const size_t there = std::min(size, static_cast<size_t>(left_));
  block_.resize(there);
  if (!file_.read(block_.data(), static_cast<std::streamsize>(there))) return Damaged("cannot be read");
  left_ -= static_cast<int64_t>(there);
  if (there < size) {
    if (!in_last_file()) return Damaged("ends within a block, and is not the last segment");
    cut_ = true;  // the checksum covers the whole block, so it cannot be checked
  } else if (Crc32c(block_) != LittleEndian32(frame + 4)) {
    return Damaged("the checksum does not match");
  }
  return true;
}

absl::StatusOr<bool> LogReader::ParseRecord(Record& record) {
  absl::string_view rest = absl::string_view(block_).substr(position_);
  const std::optional<uint64_t> size = TakeRecordSize(rest);
  if (size && *size > kMaxRecordBytes)
    return Damaged(absl::StrCat("a record's size is ", *size, " bytes, which is out of range"));
  if (!size || *size > rest.size()) {
    if (!cut_) return Damaged("a record is longer than its block");
    ending_ = Ending::kTruncated;
    return false;
  }
  absl::StatusOr<Record> decoded = Decode(rest.substr(0, *size), id_base_);
  if (!decoded.ok()) return Damaged(decoded.status().message());
  record = *std::move(decoded);
  if (const auto* header = std::get_if<LogHeader>(&record)) id_base_ = header->id_base;
  position_ = block_.size() - rest.size() + *size;
  return true;
}

}  // namespace bfio::record
