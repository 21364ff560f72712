// MC-SF's memory against its definition: what every request holds, summed in every step.
#include "router/core/admission/mc_sf.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>

#include "common/base/rng.h"

namespace bfio::core {
namespace {

// The tokens of a request in a step, computed step by step: one more chunk of its prompt per step until the
// prompt is complete, then one more token per step.
int64_t Holds(const KvCourse& course, int64_t step) {
  int64_t tokens = 0, made = 0, at = course.begin - 1;
  while (at < step) {
    ++at;
    if (tokens < course.prompt) {
      tokens = course.chunk > 0 ? std::min(course.prompt, tokens + course.chunk) : course.prompt;
      if (tokens == course.prompt) made = 1;
    } else if (made < course.output) {
      ++tokens;
      ++made;
    } else if (++made > course.output + course.late) {
      return 0;
    }
  }
  return tokens;
}

// The definition: all requests, each with the step from which on it is gone.
struct PlainSum {
  struct Entry {
    KvCourse course;
    int64_t gone = int64_t{1} << 40;
  };
  std::map<uint64_t, Entry> entries;

  int64_t At(int64_t step) const {
    int64_t sum = 0;
    for (const auto& [id, entry] : entries) {
      if (step < entry.gone) sum += Holds(entry.course, step);
    }
    return sum;
  }
  int64_t PeakWith(const KvCourse& course, int64_t now) const {
    int64_t peak = 0;
    for (int64_t step = std::max(now, course.begin); step <= course.last(); ++step)
      peak = std::max(peak, At(step) + Holds(course, step));
    return peak;
  }
};

KvCourse RandomCourse(Rng& rng, int64_t now) {
  KvCourse course;
  course.begin = now + static_cast<int64_t>(rng.Below(3));
  course.prompt = 1 + static_cast<int64_t>(rng.Below(60));
  course.output = 1 + static_cast<int64_t>(rng.Below(40));
  if (rng.Below(2) == 0) course.chunk = 1 + static_cast<int64_t>(rng.Below(20));
  if (rng.Below(3) == 0) course.late = static_cast<int64_t>(rng.Below(6));
  return course;
}

TEST(McSf, IsTheSumOverAllRequestsUnderRandomEvents) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    Rng rng(seed);
    McSf memory;
    PlainSum plain;
    uint64_t id = 0;
    int64_t now = 0;
    for (int i = 0; i < 120; ++i) {
      const double draw = rng.Uniform();
      if (draw < 0.4) {
        const KvCourse course = RandomCourse(rng, now);
        ASSERT_EQ(memory.PeakWith(course), plain.PeakWith(course, now)) << "seed " << seed << ", event " << i;
        memory.Add(++id, course);
        plain.entries[id].course = course;
      } else if (draw < 0.55 && id > 0) {
        const uint64_t leaves = 1 + rng.Below(id);
        if (memory.Find(leaves) != nullptr) {
          plain.entries[leaves].gone = now + static_cast<int64_t>(rng.Below(3));
          memory.Remove(leaves, plain.entries[leaves].gone);
        }
      } else if (draw < 0.65 && id > 0) {
        const uint64_t longer = 1 + rng.Below(id);
        const KvCourse* const course = memory.Find(longer);
        if (course != nullptr && course->late == 0 && course->last() >= now) {
          const int64_t more = 1 + static_cast<int64_t>(rng.Below(9));
          memory.Extend(longer, course->last() + more);
          plain.entries[longer].course.output += more;
        }
      } else {
        now += static_cast<int64_t>(rng.Below(4));
        memory.Advance(now);
        while (const auto ended = memory.EndsBefore(now)) memory.Remove(*ended, now);
      }
      const int64_t step = now + static_cast<int64_t>(rng.Below(60));
      ASSERT_EQ(memory.At(step), plain.At(step)) << "seed " << seed << ", event " << i;
    }
  }
}

}  // namespace
}  // namespace bfio::core
