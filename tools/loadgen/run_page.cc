#include "tools/loadgen/run_page.h"

#include <cmath>
#include <optional>

#include "nlohmann/json.hpp"
#include "tools/loadgen/compare.h"
#include "tools/loadgen/page_files.h"
#include "tools/page/page.h"

namespace bfio::loadgen {

using Json = nlohmann::ordered_json;

std::string RunPage(const std::vector<RunDocument>& runs) {
  Json data = {{"runs", Json::array()}};
  for (const RunDocument& run : runs) data["runs"].push_back({{"name", run.name()}, {"result", run.json()}});
  if (runs.size() > 1) {
    data["differences"] = Json::array();
    for (const Difference& difference : Differences(runs)) {
      Json changes = Json::array();
      for (const std::optional<double>& change : difference.changes) changes.push_back(change.value_or(NAN));
      data["differences"].push_back(
          {{"name", difference.name}, {"values", difference.values}, {"changes", std::move(changes)}});
    }
    data["settings"] = Json::array();
    for (const SettingDifference& setting : SettingDifferences(runs))
      data["settings"].push_back({{"name", setting.name}, {"values", setting.values}});
  }
  return HtmlPage(page::kRunPageJs, data);
}

}  // namespace bfio::loadgen
