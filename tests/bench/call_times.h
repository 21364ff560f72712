// The duration of single calls in a benchmark, in processor time: other processes do not affect it.
#pragma once

#include <benchmark/benchmark.h>
#include <time.h>

#include <algorithm>
#include <vector>

namespace bfio::bench {

// Of this thread.
inline double NowMicroseconds() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e6 + static_cast<double>(now.tv_nsec) * 1e-3;
}

// When the last call of Measure began.
inline double call_began_us = 0;

// Runs `prepare` and, timed, `call` in each iteration; "p99_us" is the 99th percentile of the calls.
// REQUIRES: the benchmark uses manual time.
template <typename Prepare, typename Call>
void Measure(benchmark::State& state, Prepare prepare, Call call) {
  std::vector<double> us;
  for (auto _ : state) {
    prepare();
    call_began_us = NowMicroseconds();
    call();
    us.push_back(NowMicroseconds() - call_began_us);
    state.SetIterationTime(us.back() * 1e-6);
  }
  const auto at = us.begin() + static_cast<std::ptrdiff_t>(0.99 * static_cast<double>(us.size() - 1));
  std::nth_element(us.begin(), at, us.end());
  state.counters["p99_us"] = *at;
}

}  // namespace bfio::bench
