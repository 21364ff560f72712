#include "tools/sim/experiment/experiments.h"

namespace bfio::sim {

const std::vector<ExperimentInfo>& Experiments() {
  static const auto* const kExperiments = new std::vector<ExperimentInfo>{
      {"fig1", "Figure 1 of the BF-IO paper: idle share per step",
       "how long workers wait for the heaviest, step by step; 32 workers", "conversation,burstgpt", Fig1},
      {"fig4", "Figure 4 of the BF-IO paper: imbalance by window", "imbalance against the steps looked ahead",
       "burstgpt", Fig4},
      {"fig5", "Figure 5 of the BF-IO paper: decode lengths",
       "how near to geometric the lengths of answers are", "conversation,code,burstgpt", Fig5},
      {"fig6", "Figure 6 of the BF-IO paper: loads over time", "every worker's load over 4,000 steps",
       "burstgpt", Fig6},
      {"table1", "Table 1 of the BF-IO paper", "the paper's comparison of policies, its numbers beside ours",
       "burstgpt", Table1},
      {"fig7", "Figures 2 and 7 of the BF-IO paper: power and energy",
       "power over time and energy, by three power laws", "burstgpt", Fig7},
      {"scaling", "Theorems 1 to 3 of the BF-IO paper: growth with slots and workers",
       "improvement over FCFS and its bounds over B and G; uniform prompts of its own", "burstgpt", Scaling},
      {"kv-high", "KV-constrained admission, 50 requests per second",
       "latency and memory of MC-SF and its foils on one worker; lengths of its own, and a workload's",
       "conversation", KvHigh},
      {"kv-low", "KV-constrained admission, 10 requests per second",
       "the same at low demand, and what the gap depends on", "conversation", KvLow},
      {"kv-alpha", "KV-constrained admission: the protected share",
       "latency over alpha, and where greedy goes round in circles", "conversation", KvAlpha},
      {"kv-beta", "KV-constrained admission: the share thrown out", "latency over beta", "conversation",
       KvBeta},
      {"wait-synthetic", "WAIT and Nested WAIT on synthetic loads",
       "throughput against the fluid benchmark and batching that does not wait; loads of its own",
       "conversation", WaitSynthetic},
      {"wait-real", "WAIT and Nested WAIT on the lengths of LMSYS", "the same on ten bins of lengths",
       "conversation", WaitReal},
      {"budget-sweep", "The token budget of chunked prefill",
       "median times over fixed budgets and an adaptive one, on one engine with a batch scheduler",
       "conversation,code,burstgpt", BudgetSweep},
      {"prefill-group", "Long prompts and the barrier",
       "idle share of four ranks by how the router plans prompts", "conversation,code,burstgpt",
       PrefillGroup},
      {"regimes", "From light load to overload",
       "idle share, step time, TTFT and waits of policies over load", "conversation", Regimes},
      {"staleness", "Late reports and pipelined plans",
       "what they cost, with a pool and with instant dispatch", "conversation", Staleness},
      {"predictors", "What a prediction of lengths must be worth",
       "known, wrongly known, learnt and hinted lengths beside none", "conversation", PredictorWorth},
      {"speedup-bound", "How near to perfect balance",
       "the share of the possible gain over FCFS, with equal and unequal workers", "conversation,burstgpt",
       SpeedupBound},
  };
  return *kExperiments;
}

}  // namespace bfio::sim
