#include <algorithm>
#include <array>
#include <fstream>
#include <iterator>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/status_macros.h"
#include "tools/sim/calibrate/calibration.h"

namespace bfio::sim {
namespace {

struct Column {
  absl::string_view name;
  double StepSample::*field;
  double unit = 1;
  // Older workers do not write it.
  bool optional = false;
};
constexpr Column kColumns[] = {{"epoch", &StepSample::epoch},
                               {"step", &StepSample::step},
                               {"load_tokens", &StepSample::load_tokens},
                               {"prefill_tokens", &StepSample::prefill_tokens},
                               {"local_ns", &StepSample::local_s, 1e-9},
                               {"barrier_wait_ns", &StepSample::barrier_wait_s, 1e-9},
                               {"gap_ns", &StepSample::gap_s, 1e-9},
                               {"batch_tokens", &StepSample::batch_tokens, 1, true},
                               {"prefill_pairs", &StepSample::prefill_pairs, 1, true},
                               {"decode_context", &StepSample::decode_context, 1, true}};

class Parser {
 public:
  Parser(absl::string_view source, StepRows& rows) : source_(source), rows_(rows) {}

  absl::Status Header(absl::string_view line) {
    const std::vector<absl::string_view> names = absl::StrSplit(line, ',');
    columns_ = names.size();
    const auto find = [&](absl::string_view name) -> size_t {
      return std::find(names.begin(), names.end(), name) - names.begin();
    };
    absl::string_view missing = (worker_at_ = find("worker")) == columns_ ? "worker" : "";
    for (size_t i = 0; i < at_.size(); ++i) {
      at_[i] = find(kColumns[i].name);
      if (missing.empty() && at_[i] == columns_ && !kColumns[i].optional) missing = kColumns[i].name;
    }
    if (missing.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat(source_, ": no column '", missing, "': is it a worker's --step_log?"));
  }

  bool Row(absl::string_view line) {
    const std::vector<absl::string_view> cells = absl::StrSplit(line, ',');
    if (cells.size() != columns_) return false;
    StepSample sample;
    for (size_t i = 0; i < at_.size(); ++i) {
      const Column& column = kColumns[i];
      if (at_[i] == columns_ || (column.field == &StepSample::gap_s && cells[at_[i]].empty())) continue;
      // Finite and so small that sums of their squares do not overflow.
      double value = 0;
      if (!absl::SimpleAtod(cells[at_[i]], &value) || !(value >= 0 && value <= 1e18)) return false;
      sample.*column.field = value * column.unit;
    }
    sample.worker = Worker(cells[worker_at_]);
    rows_.samples.push_back(sample);
    return true;
  }

 private:
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
  // Number of columns, and where those of kColumns are; columns_ where the log does not have it.
  size_t columns_ = 0, worker_at_ = 0;
  std::array<size_t, std::size(kColumns)> at_ = {};
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
      const std::string text((std::istreambuf_iterator<char>(in)), {});
      if (!in.is_open() || in.bad()) return absl::NotFoundError(absl::StrCat("cannot read ", file));
      BFIO_RETURN_IF_ERROR(ParseStepRows(text, file, rows));
      rows.files.push_back(file);
    }
  }
  return rows;
}

}  // namespace bfio::sim
