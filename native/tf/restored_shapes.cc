#include "native/tf/restored_shapes.h"

#include <string_view>
#include <unordered_map>
#include <utility>

#include "native/tf/handle_search.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/protobuf/meta_graph.pb.h"
#include "tensorflow/core/util/saved_tensor_slice_util.h"

namespace millpond::tf {
namespace {

using tensorflow::PartialTensorShape;

// Returns the shape that a variable's handle declares, by the variable.
std::unordered_map<std::string, PartialTensorShape> DeclaredShapes(
    const tensorflow::MetaGraphDef& meta_graph) {
  std::unordered_map<std::string, PartialTensorShape> shapes;
  for (const tensorflow::NodeDef& node : meta_graph.graph_def().node()) {
    const auto shape = node.attr().find("shape");
    PartialTensorShape dims;
    if (node.op() != kHandleOp || shape == node.attr().end() ||
        !PartialTensorShape::BuildPartialTensorShape(shape->second.shape(), &dims).ok()) {
      continue;
    }
    shapes.emplace(HandleSearch::NameOf(HandleSearch::KeyOf(node)), std::move(dims));
  }
  return shapes;
}

}  // namespace

std::string EntryNameOf(const RestoredTensor& tensor) {
  const auto& [name, shape_and_slice] = tensor;
  if (shape_and_slice.empty()) return name;
  tensorflow::TensorShape shape;
  tensorflow::TensorShape slice_shape;
  tensorflow::TensorSlice slice;
  const absl::Status parsed =
      tensorflow::checkpoint::ParseShapeAndSlice(shape_and_slice, &shape, &slice, &slice_shape);
  return parsed.ok() ? tensorflow::checkpoint::EncodeTensorNameSlice(name, slice) : "";
}

base::Status CheckRestoredShapes(const tensorflow::MetaGraphDef& meta_graph,
                                 const std::map<RestoredTensor, std::string>& targets,
                                 const CheckpointIndex& index) {
  const auto declared = DeclaredShapes(meta_graph);
  std::unordered_map<std::string_view, const CheckpointEntry*> entries;
  for (const CheckpointEntry& entry : index.entries) entries.emplace(entry.name, &entry);
  for (const auto& [tensor, variable] : targets) {
    const auto entry = entries.find(EntryNameOf(tensor));
    const auto shape = declared.find(variable);
    if (entry == entries.end() || shape == declared.end() ||
        shape->second.IsCompatibleWith(entry->second->shape)) {
      continue;
    }
    return base::FailedPrecondition(
        tensor.first + " has the shape " + entry->second->shape.DebugString() + " in " +
        index.header.index_path + ", and the variable that is restored from it has the shape " +
        shape->second.DebugString() + " in the graph: export the version again");
  }
  return {};
}

}  // namespace millpond::tf
