#include "router/core/admission/kv_books.h"

#include <algorithm>
#include <cmath>

namespace bfio::core {

void KvBooks::Reset(size_t workers) {
  books_.assign(workers, {});
}

int64_t KvBooks::Most(int64_t predicted, int64_t generated) const {
  // The bound keeps the product within 64 bits.
  const double more = std::floor(static_cast<double>(predicted + generated) * length_error_ + 1e-9);
  return predicted + static_cast<int64_t>(std::min(more, 1e15));
}

void KvBooks::Update(WorkerIndex worker, const Lookahead& lookahead, absl::Span<const Resident> residents,
                     const PlanTime& time, const KvChanges& changes) {
  Book& book = books_[worker];
  if (changes.anew) book = {};
  book.memory.Advance(std::max<int64_t>(0, time.plan_step));
  again_.clear();
  again_.swap(book.unsettled);
  while (const auto id = book.memory.EndsBefore(time.plan_step)) {
    book.memory.Remove(*id, time.plan_step);
    again_.push_back(*id);
  }
  for (const RequestId id : changes.gone) Forget(book, id);
  named_.clear();
  for (const KvChanges::Resident& changed : changes.changed) {
    const Resident& resident = residents[static_cast<size_t>(changed.index)];
    named_.insert(resident.id);
    book.residents.insert_or_assign(resident.id, resident);
    Enter(book, lookahead, resident, time, changed.prompt_steps);
  }
  for (const RequestId id : again_) {
    if (named_.contains(id)) continue;
    const auto it = book.residents.find(id);
    if (it != book.residents.end()) Enter(book, lookahead, it->second, time, 0);
  }
  std::sort(book.unsettled.begin(), book.unsettled.end());
  book.unsettled.erase(std::unique(book.unsettled.begin(), book.unsettled.end()), book.unsettled.end());
}

void KvBooks::Forget(Book& book, RequestId id) {
  if (book.residents.erase(id) == 0) return;
  if (book.memory.Find(id) != nullptr) book.memory.Remove(id, book.memory.now());
}

void KvBooks::Enter(Book& book, const Lookahead& lookahead, const Resident& resident, const PlanTime& time,
                    int64_t prompt_steps) {
  const RequestId id = resident.id;
  if (book.memory.Find(id) != nullptr) book.memory.Remove(id, time.plan_step);
  const int64_t late = resident.dropped ? 0 : prompt_steps + (resident.inflight ? kLateSteps : 0);
  const Progress progress = ProgressOf(resident, time);
  int64_t stay = lookahead.Lifetime(resident, time, {}, {});
  if (!resident.dropped) {
    const int64_t planned = progress.plan_age - resident.generated_tokens;
    const int64_t most = Most(resident.expected_tokens, resident.generated_tokens) - planned;
    stay = std::max(stay, std::min(progress.steps_left, most));
  }
  const bool outlived = progress.known_age - resident.generated_tokens >= resident.expected_tokens;
  if (stay < 1 || late > 0 || outlived) book.unsettled.push_back(id);
  if (stay + late < 1) return;
  KvCourse course{time.plan_step, progress.tokens, std::max<int64_t>(1, stay), 0, late};
  if (stay < 1) course.late = stay + late - 1;
  // All tokens that it may need, from now on.
  if (resident.reserves_kv) {
    course = {time.plan_step, resident.prefill_tokens + resident.max_new_tokens - 1, 1, 0, stay + late - 1};
  }
  book.memory.Add(id, course);
}

}  // namespace bfio::core
