#include "tools/sim/calibrate/step_rows.h"

#include <algorithm>
#include <array>
#include <fstream>
#include <iterator>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/status_macros.h"

namespace bfio::sim {
namespace {

constexpr std::array<absl::string_view, 9> kColumns = {"worker",   "epoch",           "step",
                                                       "rank",     "load_tokens",     "prefill_tokens",
                                                       "local_ns", "barrier_wait_ns", "gap_ns"};
// Columns that older workers do not write.
constexpr std::array<absl::string_view, 3> kBatchColumns = {"batch_tokens", "prefill_pairs",
                                                            "decode_context"};
enum Column { kWorker, kEpoch, kStep, kRank, kLoad, kPrefill, kLocal, kWait, kGap };

class Parser {
 public:
  Parser(absl::string_view source, StepRows& rows) : source_(source), rows_(rows) {}

  absl::Status Header(absl::string_view line) {
    const std::vector<absl::string_view> names = absl::StrSplit(line, ',');
    for (size_t i = 0; i < kColumns.size(); ++i) {
      const auto at = std::find(names.begin(), names.end(), kColumns[i]);
      if (at == names.end()) {
        return absl::InvalidArgumentError(
            absl::StrCat(source_, ": no column '", kColumns[i], "': is it a worker's --step_log?"));
      }
      at_[i] = static_cast<size_t>(at - names.begin());
    }
    has_batch_ = true;
    for (size_t i = 0; i < kBatchColumns.size(); ++i) {
      const auto at = std::find(names.begin(), names.end(), kBatchColumns[i]);
      has_batch_ = has_batch_ && at != names.end();
      batch_at_[i] = static_cast<size_t>(at - names.begin());
    }
    columns_ = names.size();
    return absl::OkStatus();
  }

  bool Row(absl::string_view line) {
    const std::vector<absl::string_view> cells = absl::StrSplit(line, ',');
    if (cells.size() != columns_) return false;
    const auto cell = [&](Column column) { return cells[at_[column]]; };
    StepSample sample;
    double local_ns = 0, wait_ns = 0, gap_ns = 0;
    if (!absl::SimpleAtoi(cell(kEpoch), &sample.epoch) || !absl::SimpleAtoi(cell(kStep), &sample.step) ||
        !absl::SimpleAtoi(cell(kRank), &sample.rank) || !Number(cell(kLoad), sample.load_tokens) ||
        !Number(cell(kPrefill), sample.prefill_tokens) || !Number(cell(kLocal), local_ns) ||
        !Number(cell(kWait), wait_ns)) {
      return false;
    }
    if (!cell(kGap).empty()) {
      if (!Number(cell(kGap), gap_ns)) return false;
      sample.gap_s = gap_ns * 1e-9;
    }
    if (has_batch_) {
      StepSample::Batch batch;
      if (!Number(cells[batch_at_[0]], batch.tokens) || !Number(cells[batch_at_[1]], batch.prefill_pairs) ||
          !Number(cells[batch_at_[2]], batch.decode_context)) {
        return false;
      }
      sample.batch = batch;
    }
    sample.local_s = local_ns * 1e-9;
    sample.barrier_wait_s = wait_ns * 1e-9;
    sample.worker = Worker(cell(kWorker));
    rows_.samples.push_back(sample);
    return true;
  }

 private:
  // Accepts finite, non-negative numbers small enough that sums of their squares do not overflow.
  static bool Number(absl::string_view text, double& value) {
    return absl::SimpleAtod(text, &value) && value >= 0 && value <= 1e18;
  }

  int32_t Worker(absl::string_view name) {
    // Nearly always the worker of the previous row.
    if (last_ >= 0 && rows_.workers[static_cast<size_t>(last_)] == name) return last_;
    const auto at = std::find(rows_.workers.begin(), rows_.workers.end(), name);
    last_ = static_cast<int32_t>(at - rows_.workers.begin());
    if (at == rows_.workers.end()) rows_.workers.emplace_back(name);
    return last_;
  }

  const absl::string_view source_;
  StepRows& rows_;
  std::array<size_t, kColumns.size()> at_ = {};
  std::array<size_t, kBatchColumns.size()> batch_at_ = {};
  bool has_batch_ = false;
  size_t columns_ = 0;
  int32_t last_ = -1;
};

}  // namespace

absl::Status ParseStepRows(absl::string_view text, absl::string_view source, StepRows& rows) {
  Parser parser(source, rows);
  int64_t number = 0;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    absl::string_view line = text.substr(0, end);
    text.remove_prefix(end == absl::string_view::npos ? text.size() : end + 1);
    if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
    if (++number == 1) {
      BFIO_RETURN_IF_ERROR(parser.Header(line));
      continue;
    }
    if (rows.samples.size() >= kMaxStepRows) {
      return absl::InvalidArgumentError(absl::StrCat(source, ": more than ", kMaxStepRows, " rows in total"));
    }
    if (line.empty() || parser.Row(line)) continue;
    if (rows.bad_lines++ == 0) rows.first_bad = absl::StrCat(source, ", line ", number);
  }
  return absl::OkStatus();
}

absl::StatusOr<StepRows> ReadStepRows(const std::vector<std::string>& paths) {
  StepRows rows;
  for (const std::string& path : paths) {
    for (const std::string& file : {path + ".1", path}) {
      if (std::find(rows.files.begin(), rows.files.end(), file) != rows.files.end()) continue;
      std::ifstream in(file, std::ios::binary);
      if (!in && file != path) continue;
      if (!in) return absl::NotFoundError(absl::StrCat("cannot read ", file));
      const std::string text((std::istreambuf_iterator<char>(in)), {});
      if (in.bad()) return absl::NotFoundError(absl::StrCat("cannot read ", file));
      BFIO_RETURN_IF_ERROR(ParseStepRows(text, file, rows));
      rows.files.push_back(file);
    }
  }
  return rows;
}

}  // namespace bfio::sim
