#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "native/base/status.h"
#include "native/tensor/signature.h"
#include "native/tensor/tensor_list.h"
#include "native/tf/signature_runner.h"

namespace tensorflow {
class GraphDef;
}  // namespace tensorflow

namespace millpond::tf {

// Several signatures of one input each as one run of the session, which feeds the same tensor to
// each input. Immutable; any number of threads at the same time.
class JointRunner {
 public:
  using MakeRunner = std::function<std::unique_ptr<SignatureRunner>(const tensor::Signature&)>;

  // Makes the runner. Borrows the signatures.
  JointRunner(std::vector<const tensor::Signature*> parts, const MakeRunner& make);

  const std::vector<const tensor::Signature*>& parts() const { return parts_; }
  // OK, or the reason why it cannot be run.
  const base::Status& made() const { return runner_->made(); }

  // Runs all parts on tensor 0 of `inputs`. `order` is parts() in any order. `results` gets the
  // outputs of each part in that order.
  base::Status Run(const std::vector<const tensor::Signature*>& order,
                   const tensor::TensorList& inputs,
                   std::vector<tensor::TensorList>* results) const;

 private:
  const std::vector<const tensor::Signature*> parts_;
  const tensor::Signature joint_;
  const std::unique_ptr<SignatureRunner> runner_;  // runs joint_
};

// The joint runners of one session. The first request for a set of signatures makes its runner, and
// waits for it as long as making a callable takes.
//
// Thread: any number of threads at the same time. Look-ups are wait-free. One thread at a time
// makes a runner. Other threads do not wait for it: FindOrMake returns null to them. Lifetime:
// within the life of the session.
class JointRunners {
 public:
  // The most runners that are kept. Each holds an executor as large as its part of the graph.
  static constexpr size_t kKeptCountMax = 16;

  // Borrows `signatures`. `graph` is the session's graph. Keeps up to `count_max` runners, and at
  // most kKeptCountMax.
  JointRunners(const tensor::SignatureMap& signatures, const tensorflow::GraphDef& graph,
               size_t count_max, JointRunner::MakeRunner make);
  ~JointRunners();
  JointRunners(const JointRunners&) = delete;
  JointRunners& operator=(const JointRunners&) = delete;

  // Returns the runner of `signatures`, in any order; valid as long as this object. Returns null if
  // CanJoin forbids it, if TensorFlow refuses it, if another thread makes a runner, or if
  // `count_max` other runners are kept. The caller then has to run the signatures one after the
  // other.
  const JointRunner* FindOrMake(const std::vector<const tensor::Signature*>& signatures) const;

  // The number of runners that are kept, including runners that cannot be run.
  size_t kept_count() const;

 private:
  using Parts = std::vector<const tensor::Signature*>;  // sorted

  // Returns true if a joint run computes the same as single runs: either all parts feed one tensor,
  // or each feeds a placeholder. Feeding a tensor that the graph computes could change the inputs
  // of another part.
  bool CanJoin(const Parts& parts) const;
  const JointRunner* Find(const Parts& parts) const;
  const JointRunner* Make(const Parts& parts) const;

  std::set<std::string> placeholders_;  // the input tensors of the signatures
  const size_t count_max_;
  const JointRunner::MakeRunner make_;
  mutable std::mutex making_;  // only ever try-locked
  // Filled from the front under making_, owned. A full slot stays unchanged to the end.
  mutable std::array<std::atomic<const JointRunner*>, kKeptCountMax> kept_{};
};

}  // namespace millpond::tf
