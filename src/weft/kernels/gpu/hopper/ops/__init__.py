"""What these kernels are made of: channels, loaders, masks, softmax, epilogues and the tile scheduler, in Gluon."""
