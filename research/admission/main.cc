// bfio_research_sim: simulates admission to one worker's KV memory by the rules of a paper.
#include <vector>

#include "absl/strings/string_view.h"
#include "common/base/shutdown.h"
#include "common/base/version.h"
#include "common/config/program.h"
#include "research/admission/commands.h"

int main(int argc, char** argv) {
  const bfio::ProgramInfo info = {
      "bfio_research_sim", bfio::Version(),
      "bfio_research_sim simulates admission rules on one worker's KV memory:\n\n"
      "  bfio_research_sim admit --profile=conversation --kv_tokens=16492 --rule=mc_sf --rate=20 "
      "--requests=1000\n"
      "  bfio_research_sim hindsight --instances=instances.jsonl --rule=mc_sf,mc_fcfs\n\n"
      "admit runs a rule; hindsight compares rules with the best schedule of small instances.\n"};
  std::vector<char*> arguments(argv, argv + argc);
  const absl::string_view name = argc > 1 ? argv[1] : "";
  if (name == "admit" || name == "hindsight") arguments.erase(arguments.begin() + 1);
  const auto read = [&](bfio::OptionTable& table) {
    bfio::InitWithoutArguments(static_cast<int>(arguments.size()), arguments.data(), info, table);
    bfio::ShutdownSignal::Install();
  };
  const absl::Status status =
      name == "hindsight" ? bfio::sim::RunHindsightCommand(read) : bfio::sim::RunAdmitCommand(read);
  return status.ok() ? 0 : bfio::ExitWith(info, status);
}
