#include "router/core/admission/mc_sf.h"

#include <algorithm>
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

}  // namespace bfio::core
