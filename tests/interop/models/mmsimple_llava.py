"""LLaVA as the Model Zoo's MultimodalSimple: image models are a list, and share the projector."""
from .llava import BUFFERS, CASES, FOLDERS, hugging_face, inputs, with_image  # noqa: F401  the other side

MODEL = "mmsimple-llava"
COMPUTED = False
RELEASES = ["cs-2.3"]


def model_zoo(w, c, ids, images):
    images_of = c["image_model_list"]
    encoder = images_of["image_models"][0]["image_encoder"]
    return with_image(w, "image_model.image_model_list.0.0.", c, encoder, encoder["image_layer_idx"],
                      images_of["image_feature_select_mode"], "image_model.projection", images_of["global_image_projection"], ids, images)
