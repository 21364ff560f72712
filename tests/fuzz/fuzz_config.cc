// Configuration files of options of every type.
#include <string>
#include <vector>

#include "common/config/options.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(bfio::fuzz::Text(data, size));
  std::string listen;
  int32_t workers = 1;
  uint64_t seed = 1;
  double load = 1, budget_ms = 5;
  bool insecure = false;
  absl::Duration timeout = absl::Seconds(10);
  std::vector<std::string> names;
  bfio::OptionTable table;
  table.Add("listen", &listen, "");
  table.Add("workers", &workers, bfio::Within(1, 4096), "");
  table.Add("seed", &seed, "");
  table.Add("load", &load, bfio::Within(0, 10), "");
  table.Add("insecure", &insecure, "");
  table.Add("step_timeout", &timeout, bfio::Within(absl::Milliseconds(1), absl::Hours(24)), "");
  table.Add("names", &names, "");
  table.AddScaled("decide_budget_ms", budget_ms, bfio::Within(0, 60'000), "",
                  [&](double ms) { budget_ms = ms; });
  table.AddChoice<bool>("plan_mode", &insecure, {{"pipelined", false}, {"lockstep", true}}, "");
  table.Add("engines", &listen, "");
  table.Find("engines")->set_list = [](const bfio::NextEntry& next) -> absl::Status {
    while (true) {
      std::string url;
      int32_t slots = 1;
      bfio::OptionTable entry;
      entry.Add("url", &url, "");
      entry.Add("slots", &slots, bfio::Within(1, 4096), "");
      BFIO_ASSIGN_OR_RETURN(const bool there, next(entry));
      if (!there) return absl::OkStatus();
      if (url.empty()) return absl::InvalidArgumentError("an engine has no url");
      bfio::fuzz::Check(slots >= 1 && slots <= 4096, "an entry's values are within bounds");
    }
  };
  const absl::Status status = table.ReadConfig(text, "fuzz");
  bfio::fuzz::Check(status.message().find('\n') == absl::string_view::npos, "an error is one line");
  bfio::fuzz::Check(workers >= 1 && workers <= 4096 && load >= 0 && load <= 10, "values are within bounds");
  return 0;
}
