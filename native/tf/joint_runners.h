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
#include "native/tf/signature.h"
#include "native/tf/signature_runner.h"
#include "native/tf/tensor_list.h"

namespace tensorflow {
class GraphDef;
}  // namespace tensorflow

namespace millpond::tf {

// Several signatures of one input each as one run of the session, which feeds each input the same
// tensor. Immutable; any number of threads at once.
class JointRunner {
 public:
  using MakeRunner = std::function<std::unique_ptr<SignatureRunner>(const Signature&)>;

  // Borrows the signatures.
  JointRunner(std::vector<const Signature*> parts, const MakeRunner& make);

  const std::vector<const Signature*>& parts() const { return parts_; }
  // OK, or why it cannot be run.
  const base::Status& made() const { return runner_->made(); }

  // Feeds tensor 0 of `inputs`. `results` gets the outputs of each of `order`, which is parts() in
  // any order.
  base::Status Run(const std::vector<const Signature*>& order, const TensorList& inputs,
                   std::vector<TensorList>* results) const;

 private:
  const std::vector<const Signature*> parts_;
  const Signature joint_;
  const std::unique_ptr<SignatureRunner> runner_;  // of joint_
};

// The joint runners of one session. Each is made by the first request for its set of signatures,
// which waits for it as long as making a callable takes.
//
// Thread: any number at once. Look-ups are wait-free. One thread at a time makes a runner: the
// others do not wait for it, they find none. Lifetime: within that of the session.
class JointRunners {
 public:
  // Each holds an executor as large as its part of the graph.
  static constexpr size_t kKeptCountMax = 16;

  // Borrows `signatures`; `graph` is that of the session. Keeps up to `count_max` runners, at most
  // kKeptCountMax.
  JointRunners(const SignatureMap& signatures, const tensorflow::GraphDef& graph, size_t count_max,
               JointRunner::MakeRunner make);
  ~JointRunners();
  JointRunners(const JointRunners&) = delete;
  JointRunners& operator=(const JointRunners&) = delete;

  // Returns what runs `signatures`, whatever their order, until this is destroyed. Null if CanJoin
  // forbids it, TensorFlow refuses it, another thread makes a runner, or `count_max` others are
  // kept: then they have to run one after the other.
  const JointRunner* FindOrMake(const std::vector<const Signature*>& signatures) const;

  // Runners that are kept, those that cannot be run included.
  size_t kept_count() const;

 private:
  using Parts = std::vector<const Signature*>;  // sorted

  // Returns whether a joint run computes the same as single runs: all feed one tensor, or each
  // feeds a placeholder. To feed a tensor that the graph computes could change what another part
  // gets.
  bool CanJoin(const Parts& parts) const;
  const JointRunner* Find(const Parts& parts) const;
  const JointRunner* Make(const Parts& parts) const;

  std::set<std::string> placeholders_;  // input tensors of the signatures
  const size_t count_max_;
  const JointRunner::MakeRunner make_;
  mutable std::mutex making_;  // only ever tried
  // Filled from the front by who holds making_, owned. A full slot stays as it is until the end.
  mutable std::array<std::atomic<const JointRunner*>, kKeptCountMax> kept_{};
};

}  // namespace millpond::tf
