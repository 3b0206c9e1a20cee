#!/bin/sh
# Serves $MODEL_BASE_PATH/$MODEL_NAME, as TensorFlow Serving's image does; further flags come as arguments.
# exec: the server is process 1 and gets docker's SIGTERM itself.
for argument in "$@"; do
  case "$argument" in
    # The file has the models; the server refuses the file together with --model_name.
    --model_config_file | --model_config_file=*) exec millpond serve --port="$MILLPOND_PORT" "$@" ;;
  esac
done
exec millpond serve --port="$MILLPOND_PORT" \
  --model_name="$MODEL_NAME" --model_base_path="$MODEL_BASE_PATH/$MODEL_NAME" "$@"
