#include "tools/loadgen/run_page.h"

#include "nlohmann/json.hpp"
#include "tools/loadgen/page_files.h"
#include "tools/loadgen/series_json.h"
#include "tools/page/page.h"

namespace bfio::loadgen {

std::string RunPage(const Report& report) {
  nlohmann::ordered_json run = ResultJson(report);
  run["distributions"] = DistributionsJson(report.results);
  run["series"] = SeriesJson(report.results.timeline, report.results.duration_s);
  return HtmlPage(page::kRunPageJs, run);
}

}  // namespace bfio::loadgen
