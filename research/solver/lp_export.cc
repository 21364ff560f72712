#include "research/solver/lp_export.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace bfio::sim {
namespace {

// LP file readers limit lines to 255 or 560 characters.
constexpr size_t kLongestLine = 200;

class Writer {
 public:
  Writer(const core::Instance& instance, std::string& text) : instance_(instance), text_(text) {
    for (size_t g = 0; g < instance.workers.size(); ++g) {
      if (instance.workers[g].free_slots > 0) open_.push_back(g);
    }
  }

  void Write(const LpOptions& options) {
    absl::StrAppend(&text_, "\\ ", options.title, "\n");
    WriteObjective();
    absl::StrAppend(&text_, "subject to\n");
    WriteMaxima();
    WriteItems();
    WriteSlots();
    WriteKv();
    WriteClasses(options.admit);
    WriteBounds();
    absl::StrAppend(&text_, "end\n");
  }

 private:
  void Begin(const std::string& name) {
    absl::StrAppend(&text_, " ", name, ":");
    line_ = text_.size() - name.size() - 2;
  }
  void Term(double factor, const std::string& name) {
    if (factor == 0) return;
    if (text_.size() - line_ > kLongestLine) {
      absl::StrAppend(&text_, "\n ");
      line_ = text_.size();
    }
    absl::StrAppendFormat(&text_, " %c %.17g %s", factor < 0 ? '-' : '+', std::abs(factor), name);
  }
  void End(const char* sense, double right) { absl::StrAppendFormat(&text_, " %s %.17g\n", sense, right); }

  static std::string X(size_t i, size_t g) { return absl::StrCat("x_", i, "_", g); }

  // Time that item i adds to worker g, h steps ahead.
  double Added(size_t i, size_t g, int32_t h) const {
    const core::SolverItem& item = instance_.items[i];
    const core::WorkerView& worker = instance_.workers[g];
    return worker.time_per_token * static_cast<double>(item.load + h) *
           instance_.Survival(instance_.CurveOf(item), h);
  }
  double BaseTime(size_t g, int32_t h) const {
    return instance_.workers[g].TimeAt(instance_.LoadAhead(g, h));
  }

  void WriteObjective() {
    absl::StrAppend(&text_, "minimize\n");
    Begin("J");
    double constant = 0;
    for (int32_t h = 0; h <= instance_.horizon; ++h) {
      Term(instance_.Discount(h) * static_cast<double>(instance_.workers.size()), absl::StrCat("M_", h));
      for (size_t g = 0; g < instance_.workers.size(); ++g)
        constant -= instance_.Discount(h) * BaseTime(g, h);
    }
    for (size_t i = 0; i < instance_.items.size(); ++i) {
      for (size_t g : open_) {
        double time = 0;
        for (int32_t h = 0; h <= instance_.horizon; ++h) time += instance_.Discount(h) * Added(i, g, h);
        Term(-time, X(i, g));
      }
    }
    Term(constant, "one");
    absl::StrAppend(&text_, "\n");
  }

  void WriteMaxima() {
    for (size_t g : open_) {
      for (int32_t h = 0; h <= instance_.horizon; ++h) {
        Begin(absl::StrCat("max_", g, "_", h));
        Term(1, absl::StrCat("M_", h));
        for (size_t i = 0; i < instance_.items.size(); ++i) {
          Term(-Added(i, g, h), X(i, g));
        }
        End(">=", BaseTime(g, h));
      }
    }
  }

  void WriteItems() {
    for (size_t i = 0; i < instance_.items.size() && open_.size() > 1; ++i) {
      Begin(absl::StrCat("item_", i));
      for (size_t g : open_) Term(1, X(i, g));
      End("<=", 1);
    }
  }

  void WriteSlots() {
    for (size_t g : open_) {
      Begin(absl::StrCat("slots_", g));
      for (size_t i = 0; i < instance_.items.size(); ++i) Term(1, X(i, g));
      End("<=", instance_.workers[g].free_slots);
    }
  }

  void WriteKv() {
    int64_t all = 0;
    for (const core::SolverItem& item : instance_.items) all += item.kv_reserve;
    for (size_t g : open_) {
      if (instance_.workers[g].free_kv_tokens >= all) continue;
      Begin(absl::StrCat("kv_", g));
      for (size_t i = 0; i < instance_.items.size(); ++i) {
        Term(static_cast<double>(instance_.items[i].kv_reserve), X(i, g));
      }
      End("<=", static_cast<double>(instance_.workers[g].free_kv_tokens));
    }
  }

  // One row per class: how many of its items are admitted.
  void WriteClasses(absl::Span<const int64_t> admit) {
    int64_t slots = instance_.TotalSlots();
    size_t first = 0;
    for (size_t k = 0; first < instance_.items.size(); ++k) {
      size_t last = first;
      while (last < instance_.items.size() &&
             instance_.items[last].priority == instance_.items[first].priority) {
        ++last;
      }
      const int64_t count =
          k < admit.size() ? admit[k] : std::min<int64_t>(slots, static_cast<int64_t>(last - first));
      slots -= count;
      Begin(absl::StrCat("admit_", k));
      for (size_t i = first; i < last; ++i) {
        for (size_t g : open_) Term(1, X(i, g));
      }
      End("=", static_cast<double>(count));
      first = last;
    }
  }

  void WriteBounds() {
    absl::StrAppend(&text_, "bounds\n");
    for (int32_t h = 0; h <= instance_.horizon; ++h) {
      double largest = -std::numeric_limits<double>::infinity();
      for (size_t g = 0; g < instance_.workers.size(); ++g) largest = std::max(largest, BaseTime(g, h));
      absl::StrAppendFormat(&text_, " M_%d >= %.17g\n", h, largest);
    }
    absl::StrAppend(&text_, " one = 1\nbinaries\n");
    for (size_t i = 0; i < instance_.items.size(); ++i) {
      for (size_t g : open_) absl::StrAppend(&text_, " ", X(i, g), "\n");
    }
  }

  const core::Instance& instance_;
  std::string& text_;
  std::vector<size_t> open_;
  size_t line_ = 0;
};

}  // namespace

absl::Status AppendLp(const core::Instance& instance, core::ObjectiveKind objective, const LpOptions& options,
                      std::string& text) {
  if (objective != core::ObjectiveKind::kPaper) {
    return absl::InvalidArgumentError("lp export: only the paper's objective is linear");
  }
  if (instance.Target() == 0)
    return absl::InvalidArgumentError("lp export: the decision has no request to place");
  for (size_t i = 0; i < instance.items.size(); ++i) {
    if (instance.items[i].reserved_worker == core::kNoReservedWorker) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("lp export: item ", i, " has a reserved worker, ", instance.items[i].reserved_worker));
  }
  Writer(instance, text).Write(options);
  return absl::OkStatus();
}

}  // namespace bfio::sim
