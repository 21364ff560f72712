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
      {"chain-placement", "Figure 3 of the paper on server chains: block placement",
       "GBP-CR's surrogate against random placements", "code", ChainPlacement},
      {"chain-cache", "Figure 4 of the paper on server chains: cache allocation",
       "jobs at once that GCA needs for a rate, against bounds and the integer program", "code", ChainCache},
      {"chain-dispatch", "Figure 5 of the paper on server chains: load balancing",
       "JFFC against JSQ, JIQ, SED and SA-JSQ over load, and Theorem 3.7's bounds", "code", ChainDispatch},
      {"chain-tuning", "Figures 6 and 7 of the paper on server chains: the cache reservation",
       "which c the surrogate and the bounds pick, and which is best when simulated", "code", ChainTuning},
      {"chain-overall", "Figure 8 of the paper on server chains: overall comparison",
       "composed chains against PETALS and BPRR over servers and their mix", "code", ChainOverall},
      {"chain-trace", "Table 1 of the paper on server chains: a bursty trace",
       "LLaMA-2-7B on nine GPU slices under requests that come in bursts", "code", ChainTrace},
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
