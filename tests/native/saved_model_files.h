#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/protobuf/saved_model.pb.h"
#include "tests/native/temporary_directory.h"

namespace millpond::testing {

std::string ReadFile(const std::string& path);
void WriteFile(const std::string& path, const std::string& bytes);
void CutFile(const std::string& path, size_t bytes);

// An attribute of most nodes that compute floats.
inline void SetFloat(tensorflow::NodeDef* node) {
  (*node->mutable_attr())["T"].set_type(tensorflow::DT_FLOAT);
}

// Writes SavedModels as exporters do, without their 5 s of importing TensorFlow's Python: a graph
// is put together node by node and tagged "serve".
class SavedModelFiles {
 public:
  SavedModelFiles();

  tensorflow::SavedModel& proto() { return proto_; }
  tensorflow::MetaGraphDef& meta_graph() { return *proto_.mutable_meta_graphs(0); }

  using SetAttributes = std::function<void(tensorflow::NodeDef*)>;
  void AddNode(const std::string& name, const std::string& op,
               const std::vector<std::string>& inputs, const SetAttributes& set_attributes = {});
  void AddPlaceholder(const std::string& name, tensorflow::DataType dtype,
                      const std::vector<int64_t>& dims);
  void AddConst(const std::string& name, const tensorflow::Tensor& value,
                const std::vector<std::string>& inputs = {});

  struct Named {
    std::string name;         // for clients
    std::string tensor_name;  // in the graph
    tensorflow::DataType dtype;
  };
  void AddSignature(const std::string& name, const std::vector<Named>& inputs,
                    const std::vector<Named>& outputs);

  // A variable, its initial value in the checkpoint, and the ops that restore it. Without
  // `has_shape` it may have values of any shape.
  void AddVariable(const std::string& name, const tensorflow::Tensor& value, bool has_shape = true);

  // The init op, as TensorFlow 2 writes it down.
  void SetInitOp(const std::string& node);
  // `node`, a constant, holds the path of the asset.
  void AddAsset(const std::string& node, const std::string& filename, const std::string& bytes);

  void Write(const std::string& directory) const;
  // Writes all but the checkpoint.
  void WriteGraph(const std::string& directory) const;

 private:
  struct Variable {
    std::string name;
    tensorflow::Tensor value;
  };
  struct Asset {
    std::string filename;
    std::string bytes;
  };

  void WriteVariables(const std::string& directory) const;

  tensorflow::SavedModel proto_;
  std::vector<Variable> variables_;
  std::vector<Asset> assets_;
};

// y = x + x: no variables. Signature serving_default (x -> y), and "names": an output twice under
// two names and the input handed through (x -> y, y_again, x_back).
SavedModelFiles DoublingModel();

// y = x * v, where v is a variable of `value`. Signature serving_default (x -> y).
SavedModelFiles VariableModel(const tensorflow::Tensor& value);

// A hash table that the init op fills from the asset words.txt: word -> its line. Signature
// serving_default (word -> line).
SavedModelFiles TableModel();

// Counts from x upwards while below `limit`. A limit beyond 2^24 makes this endless, because
// float32 stands still there. Signature serving_default (x, limit -> y).
SavedModelFiles CountingModel();

}  // namespace millpond::testing
