#include "worker/link/step_log.h"

#include <cmath>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "common/base/append_file.h"
#include "common/base/status_macros.h"

namespace bfio::worker {
namespace {

// In the CSV's first column.
std::string CsvName(absl::string_view worker) {
  std::string name(worker);
  for (char& c : name) {
    if (c == ',' || c == '"' || static_cast<unsigned char>(c) < ' ') c = '_';
  }
  return name;
}

// PATH and PATH.1, within a bound.
class BoundedFile {
 public:
  BoundedFile(std::string path, int64_t max_bytes)
      : path_(std::move(path)), half_(max_bytes / 2), special_(IsSpecialFile(path_)) {}

  // An existing file at the path becomes PATH.1.
  absl::Status Next() {
    file_ = AppendFile();
    if (!special_) {
      std::error_code error;
      if (std::filesystem::exists(path_, error)) std::filesystem::rename(path_, path_ + ".1", error);
      if (error) return absl::UnavailableError(absl::StrCat("cannot rename ", path_, ": ", error.message()));
      // Left by a run with a larger bound.
      const auto old = std::filesystem::file_size(path_ + ".1", error);
      if (!error && static_cast<int64_t>(old) > half_) std::filesystem::remove(path_ + ".1", error);
    }
    BFIO_ASSIGN_OR_RETURN(file_, AppendFile::Open(path_, AppendFile::Mode::kAppend));
    return absl::OkStatus();
  }

  // REQUIRES: `lines` are whole lines.
  absl::Status Write(absl::string_view lines) {
    while (!lines.empty()) {
      if (file_.bytes() == 0 && !began_) {
        BFIO_RETURN_IF_ERROR(file_.Append(StepLog::kHeader));
        began_ = true;
      }
      const int64_t capacity = special_ ? static_cast<int64_t>(lines.size()) : half_ - file_.bytes();
      size_t take = lines.size();
      if (static_cast<int64_t>(take) > capacity) {
        const size_t end =
            capacity <= 0 ? absl::string_view::npos : lines.rfind('\n', static_cast<size_t>(capacity - 1));
        take = end == absl::string_view::npos ? 0 : end + 1;
      }
      BFIO_RETURN_IF_ERROR(take == 0 ? Restart() : file_.Append(lines.substr(0, take)));
      lines.remove_prefix(take);
    }
    return absl::OkStatus();
  }

 private:
  absl::Status Restart() {
    began_ = false;
    return Next();
  }

  const std::string path_;
  const int64_t half_;
  const bool special_;
  // Whether the file has its header.
  bool began_ = false;
  AppendFile file_;
};

}  // namespace

std::string StepLog::Rank::Row(const StepReport& report, const GroupSpec& group, int32_t admitted,
                               int64_t end_ns) const {
  const StepOutput& of = report.output;
  std::string row = absl::StrCat(worker_, ",", report.epoch, ",", report.step, ",");
  absl::StrAppend(&row, group.rank, ",", group.world_size, ",", of.load_tokens, ",", of.tokens.size());
  absl::StrAppend(&row, ",", admitted, ",", of.finished.size(), ",", of.prefill_tokens);
  absl::StrAppend(&row, ",", report.local_ns, ",", report.barrier_wait_ns, ",");
  if (report.gap_ns) absl::StrAppend(&row, *report.gap_ns);
  // Integers, because StrAppend rounds doubles beyond 6 digits.
  absl::StrAppend(&row, ",", end_ns, ",", of.batch.tokens, ",", std::llround(of.batch.prefill_pairs), ",",
                  std::llround(of.batch.decode_context), "\n");
  return row;
}

absl::StatusOr<std::unique_ptr<StepLog>> StepLog::Open(const std::string& path, int64_t max_bytes) {
  if (max_bytes < kMinBytes) {
    return absl::InvalidArgumentError(absl::StrCat("the maximum size of the step log is ", max_bytes,
                                                   " bytes; must be at least ", kMinBytes));
  }
  const auto file = std::make_shared<BoundedFile>(path, max_bytes);
  BFIO_RETURN_IF_ERROR(file->Next());
  return std::unique_ptr<StepLog>(
      new StepLog({.name = "step log",
                   .bound = "the space for waiting rows",
                   .max_bytes = kWaitingBytes,
                   .poll = kPoll,
                   .write = [file](const BackgroundWriter::Item& item) { return file->Write(item.bytes); }}));
}

StepLog::Rank* StepLog::AddRank(absl::string_view worker) {
  ranks_.push_back(std::unique_ptr<Rank>(new Rank(CsvName(worker), &writer_)));
  return ranks_.back().get();
}

}  // namespace bfio::worker
