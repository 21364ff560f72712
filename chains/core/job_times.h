// The time of a job on a server, computed from the hardware's data.
//
// Purpose: the communication and computation times of server_pool.h, following section 4.1.1 of "Serving
// Chain-structured Jobs with Large Memory Footprints": prefill is compute-bound, decode reads the weights
// once per token, and every token visits every server of a chain. Units are in the names. Pure functions.
// Threads: any, no state.
#ifndef BFIO_CHAINS_CORE_JOB_TIMES_H_
#define BFIO_CHAINS_CORE_JOB_TIMES_H_

namespace bfio::core {

// The mean job.
struct JobShape {
  double input_tokens = 0;
  double output_tokens = 0;  // at least 1
};

struct ServerSpeed {
  double tflops = 0;
  double memory_gb_per_s = 0;
};

struct BlockCost {
  double gflop_per_token = 0;
  double size_gb = 0;
};

// tau^p, s: overhead, the prompt's computation, and one pass over the weights for each token but the first.
inline double ComputeSeconds(const JobShape& job, const ServerSpeed& speed, const BlockCost& block,
                             double overhead_s) {
  return overhead_s + 1e-3 * block.gflop_per_token / speed.tflops * job.input_tokens +
         block.size_gb / speed.memory_gb_per_s * (job.output_tokens - 1);
}

// tau^c, s: for each token, a round trip and the overhead of handling a message.
inline double CommunicationSeconds(const JobShape& job, double round_trip_s, double overhead_s) {
  return job.output_tokens * (round_trip_s + overhead_s);
}

}  // namespace bfio::core

#endif  // BFIO_CHAINS_CORE_JOB_TIMES_H_
