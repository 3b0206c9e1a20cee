#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "native/base/status.h"
#include "native/metrics/request_phases.h"
#include "native/servable/servable.h"
#include "native/tf/output_set.h"
#include "native/tf/run_context.h"
#include "native/tf/signature.h"
#include "native/tf/tensor_list.h"

namespace millpond::inference {

// What every request that runs a signature with named inputs does, whatever it came as: gRPC,
// JSON, or another protocol's messages.

// The signature that a request means by `name`; the default one where that is empty.
// FAILED_PRECONDITION, with those that there are, where there is no such.
base::StatusOr<const tf::Signature*> FindSignature(const servable::Servable& servable,
                                                   std::string_view name);

// Names as an error message lists them, like "{a, b}"; of many the first, and how many more.
std::string ListNames(const std::vector<std::string_view>& names);

// Why a request that sends `extra` and not `missing` cannot be one for `signature`.
base::Status InputsDiffer(const tf::Signature& signature,
                          const std::vector<std::string_view>& extra,
                          const std::vector<std::string_view>& missing);

// The outputs that `filter` names: all where it names none. INVALID_ARGUMENT where it names one
// that there is not, or one twice.
base::StatusOr<tf::OutputSet> SelectOutputs(const std::vector<std::string>& filter,
                                            const tf::Signature& signature);

// Enters `phase` now, where there is a watch.
void EnterPhase(metrics::Phase phase, metrics::PhaseWatch* watch);

// Runs the signature in the phase kRun, and enters kEncode if that succeeds.
//
// An error of Servable::Run on inputs whose shapes the signature does not name becomes
// INVALID_ARGUMENT with the first such input, if the shapes can be its cause. Else it stays.
base::Status RunSignature(const servable::Servable& servable, const tf::Signature& signature,
                          const tf::OutputSet& outputs, const tf::RunContext& run,
                          const tf::TensorList& inputs, tf::TensorList* result,
                          metrics::PhaseWatch* watch);

// Runs all outputs of each of `signatures` by Servable::RunTogether, or one after the other if that
// cannot be, in the phases of RunSignature. `results` gets one list for each. An error becomes one
// of the first signature whose input can be its cause, as RunSignature has it.
base::Status RunSignaturesTogether(const servable::Servable& servable,
                                   const std::vector<const tf::Signature*>& signatures,
                                   const tf::RunContext& run, const tf::TensorList& inputs,
                                   std::vector<tf::TensorList>* results,
                                   metrics::PhaseWatch* watch);

}  // namespace millpond::inference
