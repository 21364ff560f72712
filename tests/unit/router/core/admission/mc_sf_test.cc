// MC-SF's memory against its definition: what every request holds, summed in every step; and the profile and
// the books of KV memory that it uses.
#include "router/core/admission/mc_sf.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <vector>

#include "absl/types/span.h"
#include "common/base/rng.h"
#include "router/core/admission/kv_books.h"
#include "router/core/lookahead/lookahead.h"

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

// --- kv profile ---

// The memory profile against sums over all requests.

// Reference implementation that adds up all requests.
struct PlainProfile {
  int64_t now = 0;
  std::vector<KvLine> lines;

  int64_t At(int64_t t) const {
    int64_t sum = 0;
    for (const KvLine& line : lines) sum += line.At(t);
    return sum;
  }
  // Sums rise until a line ends.
  int64_t Peak(int64_t from, int64_t to) const {
    int64_t peak = std::max(At(from), At(to));
    for (const KvLine& line : lines)
      peak = line.to >= from && line.to <= to ? std::max(peak, At(line.to)) : peak;
    return peak;
  }
  int64_t PeakWith(const KvLine& line) const {
    PlainProfile with = *this;
    with.lines.push_back(line);
    return with.Peak(std::max(line.from, now), std::max(line.from, line.to));
  }
};

KvLine RandomLine(Rng& rng, int64_t now, int64_t longest) {
  const int64_t prompt = static_cast<int64_t>(rng.Below(40)), from = now + static_cast<int64_t>(rng.Below(2));
  return {prompt - from, from, from + static_cast<int64_t>(rng.Below(static_cast<uint64_t>(longest)))};
}

TEST(KvProfile, IsThePlainSumUnderRandomOperations) {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    Rng rng(seed);
    KvProfile profile;
    PlainProfile plain;
    const int64_t longest = seed % 4 == 0 ? int64_t{1} << 40 : 1 + static_cast<int64_t>(rng.Below(60));
    for (int i = 0; i < 120; ++i) {
      const double draw = rng.Uniform();
      if (draw < 0.45) {
        const KvLine line = RandomLine(rng, plain.now, longest);
        ASSERT_EQ(profile.PeakWith(line), plain.PeakWith(line)) << "seed " << seed << " operation " << i;
        profile.Add(line);
        plain.lines.push_back(line);
      } else if (draw < 0.6 && !plain.lines.empty()) {
        const size_t at = rng.Below(plain.lines.size());
        profile.Remove(plain.lines[at]);
        plain.lines.erase(plain.lines.begin() + static_cast<ptrdiff_t>(at));
      } else if (draw < 0.9) {
        plain.now += static_cast<int64_t>(rng.Below(draw < 0.62 ? 200 : 4));
        profile.Advance(plain.now);
        std::erase_if(plain.lines, [&](const KvLine& line) { return line.to < plain.now; });
      }
      const int64_t from = plain.now + static_cast<int64_t>(rng.Below(10));
      const int64_t to = from + static_cast<int64_t>(rng.Below(50));
      ASSERT_EQ(profile.Peak(from, to), plain.Peak(from, to)) << "seed " << seed << " operation " << i;
      ASSERT_EQ(profile.At(from), plain.At(from));
      const std::vector<int64_t> starts = {0, 1, 2 + static_cast<int64_t>(rng.Below(30)), 32};
      std::vector<int64_t> peaks(starts.size());
      profile.Peaks(starts, absl::MakeSpan(peaks));
      for (size_t k = 0; k < starts.size(); ++k) {
        const int64_t end = k + 1 < starts.size() ? starts[k + 1] : int64_t{1} << 41;
        ASSERT_EQ(peaks[k], plain.Peak(plain.now + starts[k], plain.now + end - 1))
            << "seed " << seed << " operation " << i << " interval " << k;
      }
    }
  }
}

// --- kv books ---

// Accounts of the workers' memory (KvBooks): incremental updates against accounts built from scratch.

// A worker's residents arrive, start late, outlive their predictions and leave. Books that get only the
// changes must equal books that get all residents.
TEST(KvBooks, IncrementalUpdatesEqualBooksFromScratch) {
  for (uint64_t seed = 1; seed <= 150; ++seed) {
    Rng rng(seed);
    const auto lookahead = *MakeLookahead(seed % 2 == 0 ? "oracle" : "max_tokens");
    KvBooks books, fresh;
    books.Reset(1);
    fresh.Reset(1);
    std::vector<Resident> residents;
    std::vector<RequestId> changed;
    PlanTime time;
    RequestId id = 0;
    for (int plan = 0; plan < 60; ++plan) {
      for (uint64_t n = rng.Below(3); n > 0; --n) {
        Resident& one = residents.emplace_back();
        one.id = ++id;
        one.first_step = time.plan_step;
        one.prefill_tokens = 1 + static_cast<int64_t>(rng.Below(50));
        one.max_new_tokens = 1 + static_cast<int64_t>(rng.Below(30));
        one.expected_tokens = 1 + static_cast<int64_t>(rng.Below(static_cast<uint64_t>(one.max_new_tokens)));
        one.inflight = true;
        one.reserves_kv = rng.Below(5) == 0;
        changed.push_back(id);
      }
      const int64_t passed = static_cast<int64_t>(rng.Below(3));
      time.plan_step += passed;
      time.reported_step += passed;
      std::erase_if(residents, [&](Resident& one) {
        if (one.inflight && rng.Below(2) == 0) {
          one.inflight = false;
          one.first_step = std::max(one.first_step, time.reported_step);
        } else if (rng.Below(30) == 0) {
          one.dropped = true;
        } else if (one.inflight ||
                   (time.reported_step < one.first_step + one.max_new_tokens - 1 && rng.Below(12) != 0)) {
          return false;
        } else {
          changed.push_back(one.id);
          return true;
        }
        changed.push_back(one.id);
        return false;
      });
      KvChanges some, all;
      all.anew = true;
      for (size_t i = 0; i < residents.size(); ++i) {
        const auto index = static_cast<int32_t>(i);
        const int64_t prompt_steps = residents[i].inflight ? residents[i].prefill_tokens / 20 : 0;
        all.changed.push_back({index, prompt_steps});
        if (residents[i].inflight || std::count(changed.begin(), changed.end(), residents[i].id) > 0)
          some.changed.push_back({index, prompt_steps});
      }
      for (const RequestId other : changed) {
        if (std::none_of(residents.begin(), residents.end(), [&](auto& one) { return one.id == other; }))
          some.gone.push_back(other);
      }
      changed.clear();
      books.Update(0, *lookahead, residents, time, some);
      fresh.Update(0, *lookahead, residents, time, all);
      for (int64_t step = time.plan_step; step < time.plan_step + 70; ++step) {
        ASSERT_EQ(books.memory(0).At(step), fresh.memory(0).At(step))
            << "seed " << seed << ", plan " << plan << ", step " << step;
      }
      ASSERT_EQ(books.memory(0).size(), fresh.memory(0).size());
    }
  }
}

}  // namespace
}  // namespace bfio::core
