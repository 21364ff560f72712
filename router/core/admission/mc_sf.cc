#include "router/core/admission/mc_sf.h"

#include <limits>

namespace bfio::core {

std::array<KvLine, 3> KvCourse::Lines() const {
  const int64_t from = first(), grown = from + output - 1;
  const auto step = static_cast<int32_t>(std::min<int64_t>(chunk, std::numeric_limits<int32_t>::max()));
  return {KvLine{step * (1 - begin), begin, from - 1, step}, KvLine{prompt - from, from, grown, 1},
          KvLine{size(), grown + 1, grown + late, 0}};
}

int64_t McSf::PeakWith(const KvCourse& course) const {
  int64_t peak = 0;
  for (const KvLine& line : course.Lines()) {
    if (line.from <= line.to && line.to >= now()) peak = std::max(peak, profile_.PeakWith(line));
  }
  return peak;
}

void McSf::Add(uint64_t id, const KvCourse& course) {
  for (const KvLine& line : course.Lines()) {
    if (line.from <= line.to && line.to >= now()) profile_.Add(line);
  }
  courses_.emplace(id, course);
  ends_.emplace(course.last(), id);
}

void McSf::Extend(uint64_t id, int64_t last) {
  KvCourse& course = courses_.at(id);
  const int64_t before = course.last(), from = std::max(before + 1, now());
  profile_.Add({course.prompt - course.first(), from, last, 1});
  ends_.erase({before, id});
  course.output += last - before;
  ends_.emplace(last, id);
}

void McSf::Remove(uint64_t id, int64_t from) {
  const auto it = courses_.find(id);
  for (KvLine line : it->second.Lines()) {
    line.from = std::max(line.from, from);
    if (line.from <= line.to) profile_.Remove(line);
  }
  ends_.erase({it->second.last(), id});
  courses_.erase(it);
}

const KvCourse* McSf::Find(uint64_t id) const {
  const auto it = courses_.find(id);
  return it == courses_.end() ? nullptr : &it->second;
}

std::optional<uint64_t> McSf::EndsBefore(int64_t step) const {
  if (ends_.empty() || ends_.begin()->first >= step) return std::nullopt;
  return ends_.begin()->second;
}

std::optional<int64_t> McSf::LastEnd() const {
  if (ends_.empty()) return std::nullopt;
  return ends_.rbegin()->first;
}

void KvProfile::Advance(int64_t now) {
  now_ = now;
  auto it = bends_.begin();
  for (; it != bends_.end() && it->first <= now; ++it) here_ += it->second;
  bends_.erase(bends_.begin(), it);
}

void KvProfile::Change(const KvLine& line, const Sum& by) {
  if (line.from <= now_) {
    here_ += by;
  } else {
    Bend(line.from, by);
  }
  Bend(line.to + 1, -by);
}

void KvProfile::Bend(int64_t at, const Sum& by) {
  const auto it = bends_.try_emplace(at).first;
  it->second += by;
  if (it->second.size == 0 && it->second.rate == 0) bends_.erase(it);
}

// Rates are not negative, so the sum is largest at the last time before a bend.
int64_t KvProfile::Peak(int64_t from, int64_t to, Sum sum) const {
  sum += here_;
  int64_t peak = 0;
  for (const auto& [at, bend] : bends_) {
    if (at > to) break;
    if (at > from) peak = std::max(peak, sum.At(at - 1));
    sum += bend;
  }
  return std::max(peak, sum.At(to));
}

void KvProfile::Peaks(absl::Span<const int64_t> starts, absl::Span<int64_t> peaks) const {
  Sum sum = here_;
  auto it = bends_.begin();
  for (size_t k = 0; k < starts.size(); ++k) {
    const bool last = k + 1 == starts.size();
    const int64_t from = now_ + starts[k], end = last ? 0 : now_ + starts[k + 1];
    peaks[k] = 0;
    for (; it != bends_.end() && (last || it->first < end); ++it) {
      if (it->first > from) peaks[k] = std::max(peaks[k], sum.At(it->first - 1));
      sum += it->second;
    }
    if (!last) peaks[k] = std::max(peaks[k], sum.At(end - 1));
  }
}

}  // namespace bfio::core
